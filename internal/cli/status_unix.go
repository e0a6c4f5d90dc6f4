//go:build unix

package cli

import (
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// openStatus takes over an inherited descriptor and keeps it from the command: whoever
// reads the other end must see it close with us. We write to a copy, since the number may
// be that of standard error, which is not ours to close.
//
// A number that nobody opened may be one of the runtime's own: its epoll says that it can be
// written to. What was inherited has come through an exec, and so is not close-on-exec; what
// this process has opened is, by the runtime, by package os and by us.
func openStatus(fd int) (io.WriteCloser, error) {
	if own, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || own&unix.FD_CLOEXEC != 0 {
		return nil, syscall.EBADF
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return nil, err
	}
	if flags&unix.O_ACCMODE == unix.O_RDONLY {
		return nil, syscall.EBADF
	}
	ours, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	if fd > 2 {
		syscall.CloseOnExec(fd)
	}
	return os.NewFile(uintptr(ours), "status"), nil
}
