//go:build unix

package secrets

import (
	"os"
	"strings"
	"unsafe"
)

// TakeArgs copies the arguments and masks the credentials in the originals, which ps shows to every
// user of the machine, and in the original environment. Go's os.Args are views of the process's
// argument memory, not copies of it, which is why writing to them works, and the only reason for
// unsafe here. Until this line has run the password can be seen: the help says so, and recommends
// HASP_STORE.
//
// Only hasp's arguments, those before "--", are touched, not the command's.
func TakeArgs() []string {
	args := make([]string, 0, len(os.Args))
	ours := true
	for _, arg := range os.Args[1:] {
		args = append(args, strings.Clone(arg))
		ours = ours && arg != "--"
		if !ours {
			continue
		}
		mask(arg, spans(arg))
	}
	maskEnvironment()
	return args
}

// maskEnvironment masks hasp's credentials in the environment this process was started with, which
// every process of the same user can read while hasp runs. Go has made copies of it, which hasp and
// the command use. Only the variables that hasp reads are touched.
//
// The original lies in the process's memory behind the arguments, string after string, up to
// the name of the program and some zeros.
func maskEnvironment() {
	last := os.Args[len(os.Args)-1]
	at := unsafe.Pointer(unsafe.StringData(last))
	for n := len(last); ; {
		at = unsafe.Add(at, n+1)
		for n = 0; *(*byte)(unsafe.Add(at, n)) != 0; n++ {
		}
		if n == 0 {
			return
		}
		entry := unsafe.String((*byte)(at), n)
		mask(entry, spansOfVariable(entry))
	}
}

// mask writes over parts of a string that is a view of this process's own memory.
func mask(text string, parts [][2]int) {
	memory := unsafe.Slice(unsafe.StringData(text), len(text))
	for _, part := range parts {
		for i := part[0]; i < part[1]; i++ {
			memory[i] = 'x'
		}
	}
}
