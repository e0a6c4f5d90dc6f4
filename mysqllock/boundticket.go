package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
)

// boundTicket is the ticket of one lock. It has its own connection from the first request
// on: for as long as there may be a lock on it, no other ticket can get that connection.
type boundTicket struct {
	session *boundSession
	request driver.Request

	turn    chan struct{}  // one slot: the caller that fills it uses the connection
	conn    *sql.Conn      // guarded by turn
	monitor *monitoredConn // of conn; nil on a pool of the user's; guarded by turn
	pending *asking        // the request that waits at the server; guarded by turn
	waiting uint64         // the server's number of a connection that was left waiting; guarded by turn

	mu      sync.Mutex
	left    bool
	entered bool // the caller was told that it waits
	held    bool
	gone    bool // held once, and lost
	token   uint64
	noting  *time.Timer // until the holder is recorded
}

func (t *boundTicket) lock(ctx context.Context) error {
	select {
	case t.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// state says what is known without asking the server.
func (t *boundTicket) state() (v driver.Verdict, over error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.gone:
		return v, errLost("the connection of the lock has ended")
	case t.left:
		return v, errLost("it has left")
	}
	return driver.Verdict{Held: t.held, Token: t.token}, nil
}

// Enqueue asks for the lock, and does not wait for it; where the store can tell so meanwhile, the
// request waits on at the server. Asked again under the same ticket it knows the answer: the lock
// is on the ticket's connection or it is not.
func (t *boundTicket) Enqueue(ctx context.Context) (driver.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return driver.Verdict{}, err
	}
	b := t.session.bound
	if err := b.lock.check(t.request.Name); err != nil {
		return driver.Verdict{}, err
	}
	if t.request.NoWait {
		return t.try(ctx)
	}
	seconds := 0
	if !b.opts.NoFence {
		seconds = waitMost
	}
	v, err := t.ask(ctx, seconds, false)
	if err != nil || v.Held {
		return v, err
	}
	t.mu.Lock()
	t.entered = true
	t.mu.Unlock()
	return v, nil
}

// try asks without waiting, and if the lock is taken, who holds.
func (t *boundTicket) try(ctx context.Context) (driver.Verdict, error) {
	v, err := t.ask(ctx, 0, false)
	if err != nil || v.Held {
		return v, err
	}
	t.session.remove(t)
	short, cancel := t.briefly(ctx)
	defer cancel()
	if e, _, err := t.session.bound.look(short, t.request.Name); err == nil && e != nil {
		v.Holder = e.Owner
	}
	return v, nil
}

// Wait waits in the server's queue, in one statement after the other.
func (t *boundTicket) Wait(ctx context.Context) (driver.Verdict, error) {
	for {
		v, err := t.ask(ctx, waitMost, true)
		if err != nil || v.Held {
			return v, err
		}
	}
}

// ask makes one attempt, or goes on with the one that is pending, and waits for its end if that is
// wanted. If the context ends first, the connection is closed, and the server may go on to wait for
// a client that has ended: Leave ends that.
func (t *boundTicket) ask(ctx context.Context, seconds int, wait bool) (driver.Verdict, error) {
	if err := t.lock(ctx); err != nil {
		return driver.Verdict{}, err
	}
	defer func() { <-t.turn }()
	if v, err := t.state(); err != nil || v.Held {
		return v, err
	}
	b := t.session.bound
	var g grant
	var err error
	if t.pending == nil {
		g, err = t.send(ctx, seconds)
	}
	if err == nil && t.pending != nil && wait {
		g, err = t.rest(ctx)
	}
	if err == nil && g.got && !b.opts.NoFence {
		err = t.fence(ctx, &g)
	}
	if err != nil {
		t.discard()
		b.lookAgain(err)
		if errors.Is(err, driver.ErrRefused) {
			t.session.remove(t) // nothing was made, and the core calls no Leave
		}
		return driver.Verdict{}, err
	}
	switch {
	case g.got:
		return t.granted(g)
	case t.request.NoWait:
		t.giveBack()
	}
	return driver.Verdict{}, nil
}

// granted notes that the lock is ours, and has the connection monitored. If the connection ended in
// between that fails, and the lock has ended before any caller was told of it.
func (t *boundTicket) granted(g grant) (driver.Verdict, error) {
	t.session.holds(t)
	t.mu.Lock()
	left := t.left
	t.held, t.token = !left, g.token
	t.mu.Unlock()
	if left || !t.watch(func() { t.lost() }) {
		t.discard()
		return driver.Verdict{}, errLost("the connection ended")
	}
	// Not before it is held: a process that was stopped in between would find no holder to record,
	// and not look again.
	if !t.session.bound.opts.NoFence && !g.recorded {
		t.noteIn(noteAfter, g)
	}
	return driver.Verdict{Held: true, Token: g.token}, nil
}

// Leave gives the lock up, or the waiting for it. Only a connection on which the server has
// confirmed that there is no lock goes back to the pool. Any other is closed, which ends its lock
// as well: so after an error the lock ends, but when is up to the server, and a second call can
// only say that we have nothing any more.
func (t *boundTicket) Leave(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t.mu.Lock()
	t.left = true // what is under way is given up
	gone := t.gone
	t.mu.Unlock()
	if gone {
		return driver.ErrGone // lost has begun to drop it, and nothing is left to do
	}
	if err := t.lock(ctx); err != nil {
		return err
	}
	defer func() { <-t.turn }()
	t.mu.Lock()
	gone = t.gone
	held, waiting := t.held && !gone, t.entered && !t.held && !gone
	t.held, t.entered = false, false
	if t.noting != nil {
		t.noting.Stop()
	}
	t.mu.Unlock()
	defer t.session.remove(t)
	switch {
	case held:
		return t.release(ctx)
	case t.pending != nil:
		t.discard()
		t.endWaiting(ctx)
	case t.conn != nil && !gone:
		t.giveBack()
	case t.conn != nil:
		t.discard()
	default:
		t.endWaiting(ctx)
	}
	if !waiting {
		return driver.ErrGone
	}
	return nil
}

// release gives a held lock back. The caller has the turn.
func (t *boundTicket) release(ctx context.Context) error {
	b := t.session.bound
	if t.conn == nil {
		return driver.ErrGone
	}
	t.watch(nil)
	there, told, a := false, false, t.newAsking()
	err := t.within(ctx, a, 0, func() (err error) {
		there, err = b.lock.release(a.ctx, t.conn, t.request.Name)
		told = err == nil
		return err
	})
	switch {
	case err != nil && told && there: // the caller's context has ended since, and the connection with it
		t.discard()
		return nil
	case err != nil && !answered(err) && ctx.Err() == nil:
		// The connection ended, and the lock with it: by now, or long ago. That cannot be
		// distinguished, and so it must not count as a release.
		t.discard()
		return fmt.Errorf("%w: its connection has ended (%w)", driver.ErrGone, err)
	case err != nil:
		t.discard()
		return fmt.Errorf("giving up the lock: %w", err)
	case !there:
		t.discard()
		return errLost("it was not held any more")
	}
	t.giveBack()
	return nil
}

// giveBack returns the connection to its pool; discard closes it. The caller has the turn. What
// will wait on a connection of the pool is another's.
func (t *boundTicket) giveBack() {
	if t.conn != nil {
		t.waiting = 0
		_ = t.conn.Close() // to its pool
		t.conn = nil
		t.session.bound.untake()
	}
}

func (t *boundTicket) discard() {
	if t.pending != nil {
		hangUp(t.conn) // or the rows would be read to their end, which is that of the waiting
		t.pending.stop()
		_ = t.pending.rows.Close()
		t.pending = nil
	}
	if t.conn != nil {
		t.watch(nil)
		discard(t.conn)
		t.conn = nil
		t.session.bound.untake()
	}
}
