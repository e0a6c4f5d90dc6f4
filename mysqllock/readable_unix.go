//go:build unix

package mysqllock

import "syscall"

// readable returns what tells whether a socket can be read from. That its end has come counts, too.
// It takes nothing out.
func readable() func(fd uintptr) bool {
	return func(fd uintptr) bool {
		_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK)
		return err != syscall.EAGAIN && err != syscall.EINTR
	}
}
