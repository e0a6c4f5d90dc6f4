package mysqllock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"time"
)

// keptConn is one connection that is kept for one purpose, and made anew when it breaks. What
// must not wait behind others has one: renewals, which an exhausted pool would turn into losses,
// and listening, which occupies a connection for seconds.
type keptConn struct {
	db *sql.DB

	// turn has one slot: the caller that fills it has the connection. A mutex could not be
	// waited for within a context.
	turn chan struct{}
	conn *sql.Conn
}

func newKeptConn(db *sql.DB) *keptConn { return &keptConn{db: db, turn: make(chan struct{}, 1)} }

// do runs fn on the connection. If the server had closed it while it was idle, which is
// only found out now and with nothing sent, fn runs again on a new one.
func (l *keptConn) do(ctx context.Context, fn func(*sql.Conn) error) error {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-l.turn }()
	for stale := l.conn != nil; ; stale = false {
		if l.conn == nil {
			c, err := connOf(ctx, l.db)
			if err != nil {
				return explain(ctx, err)
			}
			l.conn = c
		}
		err := fn(l.conn)
		if answered(err) {
			return err
		}
		l.drop()
		if !stale || !unsent(err) {
			return err
		}
	}
}

// unsent reports that the connection was known to have ended, so that nothing was sent: by the
// client library, or by database/sql, which has closed it after an error that its last user could
// leave aside.
func unsent(err error) bool {
	return errors.Is(err, sqldriver.ErrBadConn) || errors.Is(err, sql.ErrConnDone)
}

// doNow runs fn, once, if the connection stands and nothing else is done with it. tried is false
// where fn says so, or nothing was sent.
func (l *keptConn) doNow(fn func(*sql.Conn) (tried bool, err error)) (tried bool, err error) {
	select {
	case l.turn <- struct{}{}:
	default:
		return false, nil
	}
	defer func() { <-l.turn }()
	if l.conn == nil {
		return false, nil
	}
	if tried, err = fn(l.conn); !answered(err) {
		l.drop()
		tried = tried && !unsent(err)
	}
	return tried, err
}

// drop closes the connection for good. The caller has the turn.
func (l *keptConn) drop() {
	if l.conn != nil {
		discard(l.conn)
		l.conn = nil
	}
}

// giveBack returns a working connection to the pool.
func (l *keptConn) giveBack() {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	if l.conn != nil {
		_ = l.conn.Close() // to its pool; there is nothing to report
		l.conn = nil
	}
}

// end closes the connection, with all that the server ties to it.
func (l *keptConn) end() {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	l.drop()
}

// onConn runs fn on a connection of the pool and closes it after an error: what the server ties to
// it, such as a lock of GET_LOCK, is freed. As with keptConn, fn runs again if nothing was sent,
// once.
func onConn(ctx context.Context, p *pool, fn func(*sql.Conn) error) error {
	done, err := turn(ctx, p)
	if err != nil {
		return err
	}
	defer done()
	for again := true; ; again = false {
		c, err := connOf(ctx, p.DB)
		if err != nil {
			return explain(ctx, err)
		}
		if err = fn(c); err == nil {
			_ = c.Close() // to its pool; there is nothing to report
			return nil
		}
		discard(c)
		if !again || !errors.Is(err, sqldriver.ErrBadConn) {
			return err
		}
	}
}

// discard closes a connection instead of giving it back: the pool drops one that its user
// calls bad. Apart: database/sql waits for ever for one on which the library has panicked.
func discard(c *sql.Conn) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		defer func() { _ = recover() }() // of the user's pool: it was told
		_ = c.Raw(func(any) error { return sqldriver.ErrBadConn })
		_ = c.Close()
	}()
	select {
	case <-closed:
	case <-time.After(discardMost):
	}
}

// discardMost is more than it takes to say goodbye on a socket.
const discardMost = 250 * time.Millisecond
