package mysqllock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/connlock"
)

const (
	// waitMost is how long one statement waits for a lock, in seconds. A server does not look
	// whether the client of a waiting statement is still there; after this time it does.
	waitMost = 10

	// answerMost is in which time the server answers a request, besides what that waits.
	answerMost = 10 * time.Second

	// besideMost bounds what is asked beside a request, on another connection: it must not fail
	// because of that one's silence, nor wait for it for long.
	besideMost = 3 * time.Second
)

// Requests for a lock: see answerOf.
const (
	bareRequest    = "SELECT ELT(GET_LOCK(?, ?) + 1, '0', ''), CONNECTION_ID()"
	tryingRequest  = "SELECT ELT(GET_LOCK(?, 0) + 1, '0', " + makesToken + "), CONNECTION_ID()"
	waitingRequest = "CALL {p}acquire_2(?, ?)"
)

// Try has the token in the same statement, and asks who holds if this is not to wait. It asks
// nothing if the name was taken lately: then the request that waits does.
func (b *bound) Try(ctx context.Context, c *boundConn, r driver.Request) (g connlock.Grant, err error) {
	name := b.lockName(r.Name)
	switch {
	case b.opts.NoFence:
		g, err = b.request(ctx, c, r, statement(bareRequest, name, 0), 0, nil)
	case r.NoWait || !b.taken.Has(r.Name):
		g, err = b.request(ctx, c, r, b.named(tryingRequest, name), 0, nil)
	}
	if err == nil && !g.Held && r.NoWait {
		short, cancel := context.WithTimeout(ctx, besideMost)
		defer cancel()
		if e, _, err := b.look(short, r.Name); err == nil && e != nil {
			g.Holder = e.Owner
		}
	}
	return g, err
}

// Wait asks by one statement after the other, each of which waits at the server. A procedure says at
// once if the lock is taken, and goes on; it costs more than a SELECT. Without tokens there is none
// that could do so.
func (b *bound) Wait(ctx context.Context, c *boundConn, r driver.Request, taken func()) (g connlock.Grant, err error) {
	text := statement(bareRequest, b.lockName(r.Name), waitMost)
	if b.opts.NoFence {
		taken() // as the try has said
	} else {
		text = b.named(waitingRequest, b.lockName(r.Name), waitMost)
	}
	for waited := false; err == nil && !g.Held; waited = true {
		c.waits = true
		g, err = b.request(ctx, c, r, text, waitMost*time.Second, func() { waited = true; taken() })
		if err == nil {
			c.waits = false
		}
		b.taken.Met(r.Name, waited || err != nil)
	}
	return g, err
}

// request makes one, for at most so long, and the token if it has the lock. A procedure answers
// twice if the lock is taken, and taken is called in between.
func (b *bound) request(ctx context.Context, c *boundConn, r driver.Request, text string, waits time.Duration, taken func()) (g connlock.Grant, err error) {
	err = c.within(ctx, waits+answerMost, func(ctx context.Context) (err error) {
		defer caught(&err)
		rows, err := c.QueryContext(ctx, text)
		if err != nil {
			return explain(ctx, err)
		}
		g, err = c.answerOf(rows)
		if err == nil && !g.Held && !b.opts.NoFence && taken != nil {
			taken()
			if rows.NextResultSet() {
				g, err = c.answerOf(rows)
			} else {
				err = cmp.Or(rows.Err(), sql.ErrNoRows)
			}
		}
		return explain(ctx, errors.Join(err, rows.Close()))
	})
	if err == nil && g.Held && !b.opts.NoFence {
		err = b.fence(ctx, c, r, &g)
	}
	return g, err
}

// errInterrupted is the answer to a GET_LOCK that was killed.
var errInterrupted = errors.New("GET_LOCK was interrupted at the server")

// answerOf reads an answer of a request: NULL if it was interrupted, 0 if the lock is taken, else
// what makes a token, or nothing.
func (c *boundConn) answerOf(rows *sql.Rows) (g connlock.Grant, err error) {
	var said sql.NullString
	if !rows.Next() {
		return g, cmp.Or(rows.Err(), sql.ErrNoRows)
	}
	if err := rows.Scan(&said, &c.number); err != nil {
		return g, err
	}
	if !said.Valid {
		return g, errInterrupted
	}
	return connlock.Grant{Held: said.String != "0", Token: tokenOf(said.String)}, nil
}

// fence makes sure of the token of a lock that was granted, and that no record of an earlier holder
// can be taken for ours.
func (b *bound) fence(ctx context.Context, c *boundConn, r driver.Request, g *connlock.Grant) error {
	if g.Token == 0 { // the server could not draw it beside the lock
		err := c.within(ctx, answerMost, func(ctx context.Context) error {
			return row(ctx, c, b.named("CALL {p}raise_2()"), &g.Token)
		})
		if err != nil {
			return err
		}
	}
	if b.notes.has(c.number, r.Name) {
		// On another connection, of which nothing else may ask: it would be silent for as long as
		// TCP tries, and the lock taken by a caller that is not told. Whether the record was made
		// is then tried again beside the holder.
		short, cancel := context.WithTimeout(ctx, besideMost)
		defer cancel()
		c.recorded = b.note(short, r, g.Token, c.number) == nil
	}
	return ctx.Err()
}

// Release takes only that for a release which the server has confirmed. Where the connection has
// ended by itself, the lock has ended with it, by now or long ago, which cannot be distinguished.
func (b *bound) Release(ctx context.Context, c *boundConn, r driver.Request) error {
	var released sql.NullBool // NULL: it is not held; false: another connection holds it
	told := false
	err := c.within(ctx, 0, func(ctx context.Context) error {
		err := row(ctx, c, statement("SELECT RELEASE_LOCK(?)", b.lockName(r.Name)), &released)
		told = err == nil
		return err
	})
	if err == nil && released.Bool {
		b.Keep(c)
		return nil
	}
	b.Drop(c)
	switch {
	case told && released.Bool: // the caller's context has ended since, and the connection with it
		return nil
	case told:
		return errGone("it was not held any more")
	case !answered(err) && ctx.Err() == nil:
		return fmt.Errorf("%w: its connection has ended (%w)", driver.ErrGone, err)
	}
	return fmt.Errorf("giving up the lock: %w", err)
}

// Confirm can only say that we have nothing any more: when the server sees the end of a connection
// is up to it.
func (b *bound) Confirm(context.Context, *boundConn, driver.Request) error {
	return errGone("its connection has ended")
}

// Ping also keeps a connection alive that a firewall, or the server's wait_timeout, would close for
// its silence.
func (b *bound) Ping(ctx context.Context, c *boundConn) (broken bool, err error) {
	err = ping(ctx, c.Conn)
	return !answered(err), err
}

// endMost bounds what ends a waiter's statement.
const endMost = 2 * time.Second

// endWaiting ends the statement of a connection that was closed while it waited. The
// server would let it wait on, and could give it the lock for a moment. The server allows it for
// connections of the same user.
//
// By now another server may answer, or another run of it, where somebody else's connection has the
// number. So it looks first whether that connection waits as ours did, on the connection by which
// it kills: the two cannot reach different servers. In between that statement may end, but no
// number is given out twice by one run of a server. If the process dies before, or the kill is
// lost, the server lets the statement wait until its time is over.
func (b *bound) endWaiting(c *boundConn, r driver.Request) {
	if !c.waits || c.number == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), endMost)
	defer cancel()
	_ = onConn(ctx, b.work, func(c2 *sql.Conn) error {
		waits := false
		err := row(ctx, c2, statement("SELECT COUNT(*) > 0 FROM information_schema.processlist WHERE id = ? AND INSTR(info, ?) > 0",
			c.number, string(b.lockName(r.Name))), &waits)
		if err != nil || !waits {
			return err
		}
		_, err = run(ctx, c2, statement("KILL QUERY ?", c.number))
		if number(err) != 0 {
			return nil // it has just ended
		}
		return err
	}) // an error says nothing: it may have ended by itself
}
