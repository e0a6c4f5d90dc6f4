package mysqllock

import (
	"cmp"
	"context"
	"database/sql"
	"net"
	"syscall"
	"time"
)

// boundConn is a connection of the strategy getlock.
type boundConn struct {
	*sql.Conn
	socket net.Conn // nil on a pool of the user's, where it is not known

	number   uint64 // the server's number of it, as far as it was told
	waits    bool   // a statement of it may wait at the server
	recorded bool   // the holder is recorded at the server (fence)
}

// socketOf is the socket of a connection of a pool of ours.
func socketOf(c *sql.Conn) (s net.Conn) {
	_ = c.Raw(func(conn any) error {
		if g, ok := conn.(*guardedConn); ok {
			s = g.socket
		}
		return nil
	})
	return s
}

// within makes a request, which ends with ctx, and if the server has not answered in that time (0:
// any): then the connection is closed. What ends in the moment in which it has succeeded counts as
// ended.
//
// A context that can end costs the client library and database/sql a goroutine each, for every
// statement: a third of the client's time for a lock. Where the socket is known, what ends a request
// closes that instead, and the library finds out by itself.
func (c *boundConn) within(ctx context.Context, limit time.Duration, request func(context.Context) error) error {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, errSilent)
		defer cancel()
	}
	over := func() bool { return ctx.Err() != nil }
	with := ctx
	if c.socket != nil {
		stop := context.AfterFunc(ctx, func() { _ = c.socket.Close() })
		over = func() bool { return !stop() } // it runs, or has run
		with = context.Background()
	}
	err := request(with)
	if over() {
		return context.Cause(ctx)
	}
	return err
}

// Watch waits until there is something to read. The server sends nothing unasked, but when it ends
// the connection: so nothing has to be read, and handed on, to find that out. A deadline in the past
// interrupts it; no configuration of ours has the library set one.
func (b *bound) Watch(ctx context.Context, c *boundConn) error {
	s, ok := c.socket.(syscall.Conn)
	if !ok {
		<-ctx.Done() // the renewals' pings must do
		return ctx.Err()
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = c.socket.SetReadDeadline(time.Unix(1, 0)) // an error says that it is closed, which ends the waiting too
		close(interrupted)
	})
	err = raw.Read(readable())
	if !stop() {
		<-interrupted
		_ = c.socket.SetReadDeadline(time.Time{})
		return ctx.Err()
	}
	return cmp.Or(err, errUnasked)
}
