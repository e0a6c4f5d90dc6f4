package pglock

import (
	"context"
	"errors"
	"fmt"

	"github.com/hasplock/hasp/driver"
)

// boundTicket is the ticket of a lock that a connection holds.
type boundTicket struct {
	session *boundSession
	request driver.Request

	// Guarded by session.mu.
	attempt *attempt // under way, or holding; nil: nothing is at the server
	left    bool
	gone    bool
	pid     uint32 // of a connection that we gave up without an answer, and that may still hold
}

// Enqueue asks for the lock, in the caller's time, and if it is taken has a connection wait for it.
// That goes on when the call's context ends, until Leave or Close ends it. Enqueue again answers
// how far it is.
func (t *boundTicket) Enqueue(ctx context.Context) (driver.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return driver.Verdict{}, err
	}
	s, r := t.session, t.request
	if r.Units != driver.Whole || r.Capacity != driver.Whole || len(r.Value) > 0 {
		return driver.Verdict{}, fmt.Errorf("%w: strategy=%s has mutexes only", driver.ErrUnsupported, s.bound.opts.Strategy)
	}
	if _, err := keyOf(s.bound.opts.Key, r.Name); err != nil {
		return driver.Verdict{}, err
	}
	a, within, err := t.begin(ctx)
	if err != nil {
		return driver.Verdict{}, err
	}
	if within != nil && t.try(within, a) {
		return t.outcome(a) // also if ctx has ended: what failed must not be found by the next call
	}
	select {
	case <-a.ended:
		return t.outcome(a)
	case <-a.waiting:
		return driver.Verdict{}, nil
	case <-ctx.Done():
		return driver.Verdict{}, ctx.Err()
	}
}

// outcome reads the result of an attempt.
func (t *boundTicket) outcome(a *attempt) (driver.Verdict, error) {
	s := t.session
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case t.gone || t.left:
		return driver.Verdict{}, driver.ErrGone
	case a.held && a.err == nil:
		return driver.Verdict{Held: true, Token: a.token}, nil
	}
	if t.attempt == a {
		t.attempt = nil
		delete(s.tickets, t)
	}
	return driver.Verdict{Holder: a.holder}, a.err
}

// lose tells that the connection of a held lock has ended.
func (t *boundTicket) lose(a *attempt, cause error) {
	s := t.session
	s.mu.Lock()
	mine := t.attempt == a && !t.left && !t.gone
	if mine {
		t.gone = true
		delete(s.tickets, t)
	}
	s.mu.Unlock()
	if mine {
		s.opts.Gone(t.request.ID, fmt.Errorf("%w: the connection that held it has ended: %w", driver.ErrGone, cause))
	}
}

// Wait returns when the lock is held, or the connection that waits for it has ended: its
// position in the queue has ended with it.
func (t *boundTicket) Wait(ctx context.Context) (driver.Verdict, error) {
	s := t.session
	s.mu.Lock()
	a, gone := t.attempt, t.gone || s.closed
	s.mu.Unlock()
	if gone || a == nil {
		return driver.Verdict{}, driver.ErrGone
	}
	select {
	case <-a.ended:
	case <-s.done.Done():
		return driver.Verdict{}, errSessionClosed
	case <-ctx.Done():
		return driver.Verdict{}, ctx.Err()
	}
	v, err := t.outcome(a)
	if err != nil && !errors.Is(err, driver.ErrMismatch) && !errors.Is(err, driver.ErrInvalid) {
		err = fmt.Errorf("%w: %w", driver.ErrGone, err)
	}
	return v, err
}

// Leave releases, or ends the connection that waits.
func (t *boundTicket) Leave(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := t.session
	s.mu.Lock()
	t.left = true
	a, pid, gone := t.attempt, t.pid, t.gone
	if a != nil {
		a.cancel() // has no effect on what is held
	}
	s.mu.Unlock()
	if a == nil && pid == 0 || gone {
		return driver.ErrGone
	}
	if pid != 0 {
		return t.ensureReleased(ctx, pid)
	}
	select {
	case <-a.ended:
	case <-ctx.Done():
		return ctx.Err()
	}
	if a.hold == nil {
		t.forget(0)
		return nil
	}
	return t.release(ctx, a.hold)
}

// release gives back what is held. Without an answer the connection is ended, and with it the
// lock, as soon as the server sees that.
func (t *boundTicket) release(ctx context.Context, h *heldConn) error {
	b := t.session.bound
	var held bool
	answered := false
	err := h.use(ctx, true, func(ctx context.Context, c *pgxLink) (err error) {
		held, err = b.release(ctx, c, t.request.Name)
		answered = true
		if err != nil || !held {
			c.close()
		} else {
			b.keep(c)
		}
		return err
	})
	switch {
	case err != nil && !answered:
		return err // another request is under way on the connection
	case endedBefore(err) && ctx.Err() == nil: // not because we have ended it
		t.forget(0)
		return fmt.Errorf("%w: the server had ended the connection: %w", driver.ErrGone, err)
	case err != nil:
		t.forget(h.link.pid)
		return explain(ctx, err)
	}
	t.forget(0)
	if !held {
		return driver.ErrGone
	}
	return nil
}

func (t *boundTicket) forget(pid uint32) {
	s := t.session
	s.mu.Lock()
	defer s.mu.Unlock()
	t.attempt, t.pid = nil, pid
	delete(s.tickets, t)
}

// ensureReleased makes sure that a connection we gave up holds nothing: a network that swallowed
// the answer may have swallowed the end of the connection, too. A holder without a name is another
// client's if a pooler may have given that the same process: behind one ours has a name, or with
// fence=off none has.
func (t *boundTicket) ensureReleased(ctx context.Context, pid uint32) error {
	b := t.session.bound
	ours := "" // the entry as it is listed: a number that was used again is another's
	err := b.eachHolder(ctx, t.request.Name, func(e driver.Entry, p int64) {
		if uint32(p) == pid && (e.ID == t.request.ID || e.ID == e.Session && !b.pooled()) {
			ours = e.ID
		}
	})
	if err != nil {
		return err
	}
	if ours == "" {
		t.forget(0)
		return driver.ErrGone
	}
	if _, err := b.end(ctx, t.request.Name, ours, int64(pid)); err != nil {
		return err
	}
	return fmt.Errorf("the server's process %d still holds the lock for a connection that has ended; it was told to end", pid)
}
