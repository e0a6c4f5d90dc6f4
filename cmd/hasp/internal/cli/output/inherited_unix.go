//go:build unix

package output

import (
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Inherited takes over an inherited descriptor and keeps it from the command: the reader of the
// other end must see it close when hasp ends. hasp writes to a copy, since the number may be that
// of standard error, which it must not close.
//
// A number that was not inherited may be one of the Go runtime: its epoll descriptor counts as
// writable. An inherited descriptor has come through an exec, so it is not close-on-exec; one that
// this process has opened (the runtime, package os, hasp) is.
func Inherited(fd int) (io.WriteCloser, error) {
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
