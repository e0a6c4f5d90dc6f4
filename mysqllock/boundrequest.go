package mysqllock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
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

	// more, if it is not nil, is of a request that waits on at the server: its next result is the other
	// answer.
	more *sql.Rows
}

// errInterrupted is the answer to a GET_LOCK that was killed.
var errInterrupted = errors.New("GET_LOCK was interrupted at the server")

// answerOf reads an answer of a request.
func answerOf(ctx context.Context, rows *sql.Rows) (p grant, err error) {
	var got sql.NullInt64
	var token sql.Null[uint64]
	if !rows.Next() {
		err = cmp.Or(rows.Err(), sql.ErrNoRows)
	} else {
		err = rows.Scan(&got, &token, &p.connection)
	}
	if err == nil && !got.Valid {
		err = errInterrupted
	}
	p.got, p.token = got.Int64 == 1, token.V
	return p, explain(ctx, err)
}

// asking is a request, with a separate context: one that has answered that the lock is taken, and will
// answer again, outlives the call that has sent it.
type asking struct {
	ctx  context.Context
	end  context.CancelCauseFunc // closes the connection
	rows *sql.Rows               // of its other answer
}

func newAsking() *asking {
	a := &asking{}
	a.ctx, a.end = context.WithCancelCause(context.Background())
	return a
}

// send asks on the ticket's connection, which it makes if there is none.
func (t *boundTicket) send(ctx context.Context, seconds int) (g grant, err error) {
	b := t.session.bound
	if err := t.session.add(t); err != nil {
		return grant{}, err
	}
	if t.conn == nil {
		c, err := b.kept.Conn(ctx)
		if err != nil {
			return grant{}, explain(ctx, err)
		}
		t.conn = c
	}
	a := newAsking()
	err = t.within(ctx, a, seconds, func() error {
		g, err = b.scheme.acquire(a.ctx, t.conn, t.request, seconds)
		return err
	})
	t.waiting = cmp.Or(g.connection, t.waiting)
	if a.rows = g.more; a.rows != nil {
		t.pending = a
	} else {
		a.end(nil)
	}
	return g, err
}

// rest waits for the end of the pending request.
func (t *boundTicket) rest(ctx context.Context) (g grant, err error) {
	a := t.pending
	err = t.within(ctx, a, waitMost, func() error {
		if !a.rows.NextResultSet() {
			return explain(a.ctx, cmp.Or(a.rows.Err(), sql.ErrNoRows))
		}
		g, err = answerOf(a.ctx, a.rows)
		return explain(a.ctx, errors.Join(err, a.rows.Close()))
	})
	if err == nil {
		t.pending = nil
		a.end(nil)
	}
	return g, err
}

// within has a part of a request end with the call that waits for it, with the session, and when the
// server has not answered in its time: then the connection is given up.
func (t *boundTicket) within(ctx context.Context, a *asking, seconds int, part func() error) error {
	defer context.AfterFunc(ctx, func() { a.end(ctx.Err()) })()
	defer context.AfterFunc(t.session.done, func() { a.end(errSessionClosed) })()
	defer time.AfterFunc(time.Duration(seconds)*time.Second+max(t.session.opts.TTL, time.Second), func() { a.end(errSilent) }).Stop()
	err := part()
	if err != nil && a.ctx.Err() != nil {
		err = context.Cause(a.ctx)
	}
	return err
}
