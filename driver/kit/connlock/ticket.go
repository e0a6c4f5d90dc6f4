package connlock

import (
	"context"
	"errors"
	"fmt"

	"github.com/hasplock/hasp/driver"
)

// Ticket is the ticket of one lock.
type Ticket[C any] struct {
	session *Session[C]
	request driver.Request

	// Guarded by the session's lock.
	attempt *attempt[C] // under way, or holding; nil: nothing is at the server
	left    bool
	gone    bool
	unsure  *C // a connection that was ended without an answer, and that may still hold
}

// Enqueue asks for the lock, in the caller's time, and if it is taken has a connection wait for it.
// That goes on when the call's context ends, until Leave or Close ends it. Enqueue again answers
// how far it is.
func (t *Ticket[C]) Enqueue(ctx context.Context) (driver.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return driver.Verdict{}, err
	}
	if err := t.session.store.Check(t.request); err != nil {
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
func (t *Ticket[C]) outcome(a *attempt[C]) (driver.Verdict, error) {
	s := t.session
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case t.gone || t.left:
		return driver.Verdict{}, driver.ErrGone
	case a.Held:
		return driver.Verdict{Held: true, Token: a.Token}, nil
	}
	if t.attempt == a {
		t.attempt = nil
		delete(s.tickets, t)
	}
	return driver.Verdict{Holder: a.Holder}, a.err
}

// Wait returns when the lock is held, or the connection that waits for it has ended: its
// position in the queue has ended with it.
func (t *Ticket[C]) Wait(ctx context.Context) (driver.Verdict, error) {
	s := t.session
	s.mu.Lock()
	a, gone := t.attempt, t.gone || s.closed
	s.mu.Unlock()
	if gone || a == nil {
		return driver.Verdict{}, driver.ErrGone
	}
	select {
	case <-a.ended:
	case <-s.Done.Done():
		return driver.Verdict{}, errClosed
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
func (t *Ticket[C]) Leave(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := t.session
	s.mu.Lock()
	t.left = true
	a, unsure, gone := t.attempt, t.unsure, t.gone
	if a != nil {
		a.cancel() // has no effect on what is held
	}
	s.mu.Unlock()
	switch {
	case gone || a == nil && unsure == nil:
		return driver.ErrGone
	case unsure != nil:
		err := s.store.Confirm(ctx, *unsure, t.request)
		if errors.Is(err, driver.ErrGone) {
			t.forget(nil)
		}
		return err
	}
	select {
	case <-a.ended:
	case <-ctx.Done():
		return ctx.Err()
	}
	if a.hold == nil {
		t.forget(nil)
		return nil
	}
	return t.release(ctx, a.hold)
}

// release gives back what is held.
func (t *Ticket[C]) release(ctx context.Context, h *hold[C]) error {
	sent := false
	err := h.use(ctx, true, func(ctx context.Context, c C) error {
		sent = true
		return t.session.store.Release(ctx, c, t.request)
	})
	switch {
	case !sent: // another request is under way on the connection, or it was lost
	case err == nil, errors.Is(err, driver.ErrGone):
		t.forget(nil)
	default:
		t.forget(&h.conn)
	}
	return err
}

// forget notes that the ticket has no connection any more.
func (t *Ticket[C]) forget(unsure *C) {
	s := t.session
	s.mu.Lock()
	defer s.mu.Unlock()
	t.attempt, t.unsure = nil, unsure
	delete(s.tickets, t)
}

// hold is the connection that holds; nil if there is none.
func (t *Ticket[C]) hold() *hold[C] {
	t.session.mu.Lock()
	defer t.session.mu.Unlock()
	return t.attempt.held()
}
