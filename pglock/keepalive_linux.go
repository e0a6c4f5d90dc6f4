package pglock

import (
	"net"

	"golang.org/x/sys/unix"
)

func limitUnacknowledged(c *net.TCPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silenceMost.Milliseconds()))
	})
	if err == nil {
		err = failed
	}
	return err
}
