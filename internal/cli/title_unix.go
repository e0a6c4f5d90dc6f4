//go:build unix

package cli

import (
	"os"
	"strings"
	"unsafe"
)

// takeArgs copies the arguments and masks the credentials in the originals, which are what
// ps shows to every user of the machine. Go's os.Args are views of the process's argument
// memory, not copies of it, which is why writing to them works, and the only reason for
// unsafe here. Until this line has run the password can be seen: the help says so, and
// recommends HASP_STORE.
//
// Only our own arguments, those before "--", are touched: the command's are its own affair.
func takeArgs() []string {
	args := make([]string, 0, len(os.Args))
	ours := true
	for _, arg := range os.Args[1:] {
		args = append(args, strings.Clone(arg))
		ours = ours && arg != "--"
		if !ours {
			continue
		}
		for _, span := range secretSpans(arg) {
			memory := unsafe.Slice(unsafe.StringData(arg), len(arg))
			for i := span[0]; i < span[1]; i++ {
				memory[i] = 'x'
			}
		}
	}
	return args
}
