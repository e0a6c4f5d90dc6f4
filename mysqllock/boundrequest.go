package mysqllock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"
)

// waitMost is how long one statement waits for a lock, in seconds. A server does not look
// whether the client of a waiting statement is still there; after this time it does.
const waitMost = 10

// grant is the answer of acquire.
type grant struct {
	got        bool
	token      uint64
	connection uint64 // the server's number of ours
	recorded   bool   // the holder is recorded at the server (fence)

	// more, if it is not nil, is of a request that waits on at the server: its next result is the
	// other answer.
	more *sql.Rows
}

// errInterrupted is the answer to a GET_LOCK that was killed.
var errInterrupted = errors.New("GET_LOCK was interrupted at the server")

// answerOf reads an answer of a request: NULL if it was interrupted, 0 if the lock is taken, else
// what makes a token, or nothing.
func answerOf(ctx context.Context, rows *sql.Rows) (p grant, err error) {
	var said sql.NullString
	if !rows.Next() {
		err = cmp.Or(rows.Err(), sql.ErrNoRows)
	} else {
		err = rows.Scan(&said, &p.connection)
	}
	if err == nil && !said.Valid {
		err = errInterrupted
	}
	p.got, p.token = said.Valid && said.String != "0", tokenOf(said.String)
	return p, explain(ctx, err)
}

// asking is a request. One that has answered that the lock is taken, and will answer again,
// outlives the call that has sent it; so its context is not that call's.
//
// A context that can end costs the client library and database/sql a goroutine each, for every
// statement: a third of the client's time for a lock. Where the socket is known, what ends a
// request closes that instead.
type asking struct {
	ctx  context.Context
	stop func()    // closes the connection
	rows *sql.Rows // of its other answer

	mu    sync.Mutex
	cause error // why it was ended
}

func (t *boundTicket) newAsking() *asking {
	a := &asking{ctx: context.Background()}
	if m := t.monitor; m != nil {
		a.stop = func() { _ = m.Conn.Close() } // the library finds out by itself
	} else {
		a.ctx, a.stop = context.WithCancel(a.ctx)
	}
	return a
}

func (a *asking) end(cause error) {
	a.mu.Lock()
	a.cause = cmp.Or(a.cause, cause)
	a.mu.Unlock()
	a.stop()
}

// send asks on the ticket's connection, which it makes if there is none.
func (t *boundTicket) send(ctx context.Context, seconds int) (g grant, err error) {
	b := t.session.bound
	if err := t.session.add(t); err != nil {
		return grant{}, err
	}
	if t.conn == nil {
		if err := b.fit(ctx); err != nil { // it asks nothing, unless the last request has found no tables
			return grant{}, err
		}
		if err := b.take(ctx); err != nil {
			return grant{}, err
		}
		c, err := b.kept.Conn(ctx)
		if err != nil {
			b.untake()
			return grant{}, explain(ctx, err)
		}
		t.conn, t.monitor = c, b.monitors.of(c)
	}
	a := t.newAsking()
	err = t.within(ctx, a, t.patience(seconds), func() error {
		g, err = b.lock.acquire(a.ctx, t.conn, t.request, seconds)
		return err
	})
	t.waiting = cmp.Or(g.connection, t.waiting)
	if a.rows = g.more; a.rows != nil {
		t.pending = a // also after an error: then discard ends it
	}
	return g, err
}

// rest waits for the end of the pending request.
func (t *boundTicket) rest(ctx context.Context) (g grant, err error) {
	a := t.pending
	err = t.within(ctx, a, t.patience(waitMost), func() error {
		if !a.rows.NextResultSet() {
			return explain(a.ctx, cmp.Or(a.rows.Err(), sql.ErrNoRows))
		}
		g, err = answerOf(a.ctx, a.rows)
		return explain(a.ctx, errors.Join(err, a.rows.Close()))
	})
	if err == nil {
		t.pending = nil
	}
	return g, err
}

// patience is in which time a request that waits for so many seconds is answered.
func (t *boundTicket) patience(seconds int) time.Duration {
	return time.Duration(seconds)*time.Second + max(t.session.opts.TTL, time.Second)
}

// within has a part of a request end with the call that waits for it, and where there is a limit,
// with the session, and when the server has not answered in that time: then the connection is
// closed. What ends in the moment in which the part has succeeded counts as ended.
func (t *boundTicket) within(ctx context.Context, a *asking, limit time.Duration, part func() error) error {
	stops := make([]func() bool, 0, 3)
	stops = append(stops, context.AfterFunc(ctx, func() { a.end(ctx.Err()) }))
	if limit > 0 {
		stops = append(stops, context.AfterFunc(t.session.done, func() { a.end(errSessionClosed) }),
			time.AfterFunc(limit, func() { a.end(errSilent) }).Stop)
	}
	err := part()
	for i, stop := range stops {
		if !stop() { // it runs, or has run
			a.end([]error{ctx.Err(), errSessionClosed, errSilent}[i])
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return cmp.Or(a.cause, err)
}

// endWaiting ends the statement of a connection that was closed while it waited. The
// server would let it wait on, and could give it the lock for a moment. The server allows it for
// connections of the same user.
//
// By now another server may answer, or another run of it, where somebody else's connection has the
// number. So it looks first whether that connection waits as ours did, on the connection by which
// it kills: the two cannot reach different servers. In between that statement may end, but no
// number is given out twice by one run of a server. If the process dies before, or the kill is
// lost, the server lets the statement wait until its time is over.
func (t *boundTicket) endWaiting(ctx context.Context) {
	if t.waiting == 0 {
		return
	}
	b := t.session.bound
	_ = onConn(ctx, b.work, func(c *sql.Conn) error {
		waits := false
		err := row(ctx, c, statement("SELECT COUNT(*) > 0 FROM information_schema.processlist WHERE id = ? AND INSTR(info, ?) > 0",
			t.waiting, b.lock.waits(t.request.Name)), &waits)
		if err != nil || !waits {
			return err
		}
		_, err = run(ctx, c, statement("KILL QUERY ?", t.waiting))
		if number(err) != 0 {
			return nil // it has just ended
		}
		return err
	}) // an error says nothing: it may have ended by itself
	t.waiting = 0
}
