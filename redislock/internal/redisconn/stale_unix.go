//go:build unix

package redisconn

import (
	"crypto/tls"
	"net"
	"syscall"
)

// findsStale says that readable works here.
const findsStale = true

// readable reports that an idle connection has something to read. That is its end: a server sends
// nothing unasked. (The tickets of a TLS session come before its first answer.)
func readable(c net.Conn) bool {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	s, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return true
	}
	something := false
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK) // Go's sockets do not block
		something = err != syscall.EAGAIN && err != syscall.EINTR
		return true
	})
	return something || err != nil
}
