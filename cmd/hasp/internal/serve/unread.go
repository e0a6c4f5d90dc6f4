package serve

import (
	"crypto/tls"
	"net"
	"syscall"
)

// unread is a connection of which the first bytes have been read.
type unread struct {
	net.Conn
	first []byte
}

func (c *unread) Read(b []byte) (int, error) {
	if len(c.first) == 0 {
		return c.Conn.Read(b)
	}
	n := copy(b, c.first)
	c.first = c.first[n:]
	return n, nil
}

// CloseWrite is called by net/http where an error is answered before the request was read.
func (c *unread) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return nil
}

// unreadTLS has what net/http looks for to tell a connection with TLS.
type unreadTLS struct{ *unread }

func (c unreadTLS) ConnectionState() tls.ConnectionState {
	return c.Conn.(*tls.Conn).ConnectionState()
}

// returned is a connection with the bytes that were read of it before all that it has. One that was parked before is wrapped once.
func returned(conn net.Conn, first []byte) net.Conn {
	switch c := conn.(type) {
	case *unread:
		c.first = append(first, c.first...)
		return c
	case unreadTLS:
		c.first = append(first, c.first...)
		return c
	case *tls.Conn:
		return unreadTLS{&unread{conn, first}}
	}
	return &unread{conn, first}
}

// socket is the one under a connection, or nil.
func socket(conn net.Conn) syscall.Conn {
	switch c := conn.(type) {
	case unreadTLS:
		return socket(c.Conn)
	case *unread:
		return socket(c.Conn)
	case *tls.Conn:
		return socket(c.NetConn())
	case syscall.Conn:
		return c
	}
	return nil
}
