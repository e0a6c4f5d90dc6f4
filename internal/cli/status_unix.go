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
func openStatus(fd int) (io.WriteCloser, error) {
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
