package mysqllock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"fmt"
	"net"
	"sync/atomic"
)

// The client library takes an answer apart without looking whether it is as long as it has to be: a
// packet that is cut short by a proxy, or by a server that fails, panics in it (v1.10.1), and would end a program because of one server. So what it does on a connection is guarded.
// Below database/sql, because that leaves its own locks taken when a panic passes through: the
// connection could then never be closed.
//
// On a pool of the user's the guard can only be above (caught). The connection is then lost for the
// pool, and closed apart; and what panics in a new connection counts as one that is open for ever
// (SetMaxOpenConns). In both, a new connection whose greeting panics leaves a goroutine of the
// library's, which waits for nothing. What database/sql does in its own goroutines can be caught on
// our pools alone: if a context ends while an answer is read, it reads the rest there. The library's
// goroutine reads nothing.

// misfit is the error of a panic. It is not ErrBadConn, after which database/sql would send the
// statement again: the server may have executed it.
func misfit(p any) error {
	return fmt.Errorf("the connection broke: the server's answer is not as it has to be: %v", p)
}

// caught makes a panic an error: of a call on a pool of the user's.
func caught(err *error) {
	if p := recover(); p != nil {
		*err = misfit(p)
	}
}

// guardedConn is a connection of the library's on a pool of ours.
type guardedConn struct {
	sqldriver.Conn
	socket net.Conn
	broken atomic.Bool
}

// guard ends a call: after a panic the connection is of no use, for anybody.
func (c *guardedConn) guard(err *error) {
	if p := recover(); p != nil {
		c.broken.Store(true)
		_ = c.socket.Close() // the library's own state cannot be trusted to do it
		*err = misfit(p)
	}
}

// IsValid has database/sql close a connection that it gets back.
func (c *guardedConn) IsValid() bool {
	return !c.broken.Load() && c.Conn.(sqldriver.Validator).IsValid()
}

func (c *guardedConn) ResetSession(ctx context.Context) (err error) {
	defer c.guard(&err)
	if c.broken.Load() {
		return sqldriver.ErrBadConn
	}
	return c.Conn.(sqldriver.SessionResetter).ResetSession(ctx)
}

func (c *guardedConn) Ping(ctx context.Context) (err error) {
	defer c.guard(&err)
	return c.Conn.(sqldriver.Pinger).Ping(ctx)
}

func (c *guardedConn) ExecContext(ctx context.Context, text string, args []sqldriver.NamedValue) (r sqldriver.Result, err error) {
	defer c.guard(&err)
	return c.Conn.(sqldriver.ExecerContext).ExecContext(ctx, text, args)
}

func (c *guardedConn) QueryContext(ctx context.Context, text string, args []sqldriver.NamedValue) (r sqldriver.Rows, err error) {
	defer c.guard(&err)
	r, err = c.Conn.(sqldriver.QueryerContext).QueryContext(ctx, text, args)
	if err != nil {
		return nil, err
	}
	return guardedRows{r, c}, nil
}

func (c *guardedConn) Close() (err error) {
	defer c.guard(&err)
	return c.Conn.Close()
}

// guardedRows is an answer on it.
type guardedRows struct {
	sqldriver.Rows
	conn *guardedConn
}

func (r guardedRows) Next(into []sqldriver.Value) (err error) {
	defer r.conn.guard(&err)
	return r.Rows.Next(into)
}

func (r guardedRows) HasNextResultSet() bool {
	return !r.conn.broken.Load() && r.Rows.(sqldriver.RowsNextResultSet).HasNextResultSet()
}

func (r guardedRows) NextResultSet() (err error) {
	defer r.conn.guard(&err)
	return r.Rows.(sqldriver.RowsNextResultSet).NextResultSet()
}

func (r guardedRows) Close() (err error) {
	defer r.conn.guard(&err)
	if r.conn.broken.Load() {
		return nil // what was wrong has been told
	}
	return r.Rows.Close()
}

type socketKey struct{}

// dialed remembers the socket of a connection that is being made, for its guard.
func dialed(ctx context.Context, socket net.Conn) {
	if s, ok := ctx.Value(socketKey{}).(*net.Conn); ok {
		*s = socket
	}
}

// guarded makes a connection.
func guarded(ctx context.Context, by sqldriver.Connector) (made *guardedConn, err error) {
	var socket net.Conn
	defer func() {
		if p := recover(); p != nil {
			if socket != nil {
				_ = socket.Close()
			}
			made, err = nil, misfit(p)
		}
	}()
	c, err := by.Connect(context.WithValue(ctx, socketKey{}, &socket))
	if err != nil {
		return nil, err
	}
	return &guardedConn{Conn: c, socket: socket}, nil
}

// connOf takes a connection out of a pool of the user's or of ours.
func connOf(ctx context.Context, db *sql.DB) (c *sql.Conn, err error) {
	defer caught(&err)
	return db.Conn(ctx)
}

func ping(ctx context.Context, c *sql.Conn) (err error) {
	defer caught(&err)
	return c.PingContext(ctx)
}
