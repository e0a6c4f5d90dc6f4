//go:build unix

package spawn

import (
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
)

func init() {
	if len(os.Args) < 3 {
		return
	}
	switch number, err := strconv.Atoi(os.Args[2]); {
	case os.Args[1] == Guard && err == nil:
		guard(number)
	case os.Args[1] == Launch && err == nil && len(os.Args) > 4:
		launch(number, os.Args[3], os.Args[4:])
	default:
		return
	}
	os.Exit(127)
}

// guard kills the group when the lifeline, its standard input, closes without a byte: then hasp is
// dead.
//
// Only KILL ends it earlier. A service manager sends TERM to every process of the service; hasp
// reacts to it, and may give the command a long time. A TERM in the millisecond before this line
// still ends the guardian, and hasp replaces it: an inherited signal mask does not help, since Go's
// runtime unblocks TERM, INT and HUP.
func guard(group int) {
	closeInherited()
	signal.Ignore()
	if !readByte(0) && group > 1 { // 1 would be every process
		_ = syscall.Kill(-group, syscall.SIGKILL)
	}
	os.Exit(0)
}

// closeInherited closes what the guardian has open beside its input: what hasp was started with, a
// lock of its caller's or a pipe that another process reads to its end. Where there is no /proc it
// stays open up to the guardian's end, a moment after hasp's. Descriptors of Go's runtime are no
// files.
func closeInherited() {
	open, _ := os.ReadDir("/proc/self/fd")
	for _, f := range open {
		to, _ := os.Readlink("/proc/self/fd/" + f.Name())
		if n, err := strconv.Atoi(f.Name()); err == nil && n > 0 && !strings.HasPrefix(to, "anon_inode:") {
			_ = syscall.Close(n)
		}
	}
}

// launch becomes the command when hasp sends the byte. If hasp dies before, it never does. Signals
// that hasp's parent had it ignore stay ignored: Go's runtime leaves HUP and INT so, and does not
// touch those of job control.
func launch(hasp int, path string, argv []string) {
	if !readByte(hasp) {
		return
	}
	syscall.CloseOnExec(hasp)
	err := syscall.Exec(path, argv, os.Environ())
	if err == syscall.ENOEXEC && IsScript(path) {
		err = syscall.Exec(Shell, ByShell(path, argv), os.Environ())
	}
	if number, ok := err.(syscall.Errno); ok {
		_, _ = syscall.Write(hasp, []byte(strconv.Itoa(int(number))))
	}
}

// readByte waits for one, and reports false at the end.
func readByte(from int) bool {
	for _ = syscall.SetNonblock(from, false); ; {
		n, err := syscall.Read(from, make([]byte, 1))
		if err != syscall.EINTR {
			return n == 1
		}
	}
}

// Shell runs scripts whose first line says nothing to the kernel, as the shell, flock and execvp do
// it.
const Shell = "/bin/sh"

// ByShell are the arguments with which it runs a command.
func ByShell(path string, argv []string) []string {
	return append([]string{"sh", path}, argv[1:]...)
}

// IsScript tells a script from a program for another machine, neither of which the kernel executes.
func IsScript(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var start [256]byte
	n, _ := f.Read(start[:]) // an empty file is a script, too
	return !strings.Contains(string(start[:n]), "\x00")
}
