//go:build unix

package spawn

import (
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

func init() {
	if len(os.Args) < 2 {
		return
	}
	switch os.Args[1] {
	case Guard:
		guard()
	case Launch:
		launch(os.Args[2:])
	default:
		return
	}
	os.Exit(127)
}

// guard kills the group when the last writing end of the lifeline, its standard input, closes
// without a dismissal: then hasp is dead, and the launcher is dead or has become the command.
//
// Only KILL ends it earlier. A service manager sends TERM to every process of the service; hasp
// reacts to it, and may give the command a long time. A TERM in the millisecond before this line
// still ends the guardian, and hasp replaces it: an inherited signal mask does not help, since Go's
// runtime unblocks TERM, INT and HUP.
func guard() {
	closeInherited()
	signal.Ignore()
	group, number := int32(0), make([]byte, 4) // no write is larger, and a pipe does not divide so small ones
	for {
		n, err := syscall.Read(0, number)
		if err == syscall.EINTR || err == syscall.EAGAIN {
			continue
		}
		if n != len(number) {
			break
		}
		group = *(*int32)(unsafe.Pointer(&number[0]))
	}
	if group > 1 { // 1 would be every process
		_ = syscall.Kill(-int(group), syscall.SIGKILL)
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

// launch tells the guardian the number of its group, which is the launcher's own, and becomes the
// command: args are its path and its arguments. Signals that hasp's parent had it ignore stay
// ignored: Go's runtime leaves HUP and INT so, and does not touch those of job control.
//
// So there is no moment in which the command runs and the guardian does not know it. If hasp dies
// before the number is written, the launcher dies (of the parent-death signal) or still writes it;
// the content of the pipe reaches the guardian even if the launcher then dies. The alternative,
// hasp writing the number after the fork, leaves the command a moment before that: enough to start
// a child and kill its parent.
func launch(args []string) {
	if len(args) < 2 {
		return
	}
	syscall.CloseOnExec(Lifeline)
	syscall.CloseOnExec(Failure)
	// If the guardian is dead already, hasp replaces it, and tells the next one the number itself.
	write(Lifeline, int32(os.Getpid()))
	err := syscall.Exec(args[0], args[1:], os.Environ())
	if errno, ok := err.(syscall.Errno); ok {
		write(Failure, int32(errno))
	}
}

func write(to int, number int32) {
	_, _ = syscall.Write(to, (*[4]byte)(unsafe.Pointer(&number))[:])
}
