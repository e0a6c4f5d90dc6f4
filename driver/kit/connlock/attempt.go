package connlock

import (
	"context"
	"fmt"
	"sync"

	"github.com/hasplock/hasp/driver"
)

// attempt is one connection's acquisition of the lock. It begins in the time of a call, without a
// goroutine: most locks are free, and to pass their answer from one goroutine to another wakes a
// second thread.
type attempt[C any] struct {
	cancel  context.CancelFunc // of the request under way; guarded by the session's lock
	waiting chan struct{}      // closed when it is known to be taken, and waited for
	ended   chan struct{}      // closed when the fields below are set
	Grant
	err  error
	hold *hold[C] // if it is held
}

// begin returns the attempt that is under way; or a new one, and the context of its first request,
// which the caller is to make.
func (t *Ticket[C]) begin(ctx context.Context) (a *attempt[C], within context.Context, err error) {
	s := t.session
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, nil, errClosed
	case t.left || t.gone:
		return nil, nil, fmt.Errorf("%w: it has left, or was lost", driver.ErrGone)
	case t.attempt == nil:
		t.attempt = &attempt[C]{waiting: make(chan struct{}), ended: make(chan struct{})}
		within, t.attempt.cancel = context.WithCancel(ctx)
		s.tickets[t] = true
	}
	return t.attempt, within, nil
}

// try takes the lock if it is free, on a connection that is used for nothing else. If it is not,
// and this is to wait, the connection goes on without the caller, and try reports false. What ends
// the caller ends the request with its connection, and so what it has taken.
func (t *Ticket[C]) try(ctx context.Context, a *attempt[C]) (ended bool) {
	cancel := a.cancel // of ctx
	defer cancel()
	store := t.session.store
	c, err := store.Take(ctx)
	if err != nil {
		a.err = err
		close(a.ended)
		return true
	}
	a.Grant, err = store.Try(ctx, c, t.request)
	if err == nil && !a.Held && !t.request.NoWait {
		var goOn context.Context
		if goOn, err = t.goOn(a); err == nil {
			go t.wait(goOn, a, c)
			return false
		}
	}
	t.finish(ctx, a, c, err)
	return true
}

// goOn has the attempt outlive its caller, unless the ticket has left meanwhile.
func (t *Ticket[C]) goOn(a *attempt[C]) (context.Context, error) {
	s := t.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.left || s.closed {
		return nil, driver.ErrGone
	}
	ctx, cancel := context.WithCancel(s.Done)
	a.cancel = cancel
	return ctx, nil
}

// wait waits for the lock.
func (t *Ticket[C]) wait(ctx context.Context, a *attempt[C], c C) {
	defer a.cancel() // of ctx, which would stay with its session's
	var err error
	a.Grant, err = t.session.store.Wait(ctx, c, t.request, sync.OnceFunc(func() { close(a.waiting) }))
	t.finish(ctx, a, c, err)
}

// finish ends the attempt. What the server has done before an error it undoes when the connection
// ends.
func (t *Ticket[C]) finish(ctx context.Context, a *attempt[C], c C, err error) {
	store := t.session.store
	switch {
	case err != nil:
		a.Grant = Grant{}
		a.err = store.Failed(ctx, c, t.request, a.waits(), err)
	case !a.Held:
		store.Keep(c)
	default:
		a.hold = newHold(t, a, c)
	}
	close(a.ended)
}

// waits reports whether the lock is known to be taken, and waited for.
func (a *attempt[C]) waits() bool {
	select {
	case <-a.waiting:
		return true
	default:
		return false
	}
}

// held is the hold, if it is known to hold.
func (a *attempt[C]) held() *hold[C] {
	if a == nil {
		return nil
	}
	select {
	case <-a.ended:
		return a.hold
	default:
		return nil
	}
}
