package pglock

import (
	"context"
	"fmt"
	"sync"

	"github.com/hasplock/hasp/driver"
)

// attempt is one connection's acquisition of the lock. It begins in the time of a call, without a
// goroutine: most locks are free, and to pass their answer from one goroutine to another wakes a
// second thread.
type attempt struct {
	cancel  context.CancelFunc // of the request under way; guarded by session.mu
	waiting chan struct{}      // closed when it is known to be taken, and waited for
	ended   chan struct{}      // closed when the fields below are set
	grant
	err  error
	hold *heldConn // if it is held
}

// begin returns the attempt that is under way; or a new one, and the context of its first request,
// which the caller is to make.
func (t *boundTicket) begin(ctx context.Context) (a *attempt, within context.Context, err error) {
	s := t.session
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, nil, errSessionClosed
	case t.left || t.gone:
		return nil, nil, fmt.Errorf("%w: it has left, or was lost", driver.ErrGone)
	case t.attempt == nil:
		t.attempt = &attempt{waiting: make(chan struct{}), ended: make(chan struct{})}
		within, t.attempt.cancel = context.WithCancel(ctx)
		s.tickets[t] = true
	}
	return t.attempt, within, nil
}

// try takes the lock if it is free, on a connection that is used for nothing else. If it is not,
// and this is to wait, the connection goes on without the caller, and try reports false. What ends
// the caller ends the request with its connection, and so what it has taken.
func (t *boundTicket) try(ctx context.Context, a *attempt) (ended bool) {
	cancel := a.cancel // of ctx
	defer cancel()
	b := t.session.bound
	var c *pgxLink
	err := b.made(ctx)
	if err == nil {
		c, err = b.link(ctx)
	}
	if err != nil {
		a.err = err
		close(a.ended)
		return true
	}
	a.grant, err = b.try(ctx, c, t.request)
	if err == nil && !a.held && !t.request.NoWait {
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
func (t *boundTicket) goOn(a *attempt) (context.Context, error) {
	s := t.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.left || s.closed {
		return nil, driver.ErrGone
	}
	ctx, cancel := context.WithCancel(s.done)
	a.cancel = cancel
	return ctx, nil
}

// wait waits for the lock.
func (t *boundTicket) wait(ctx context.Context, a *attempt, c *pgxLink) {
	defer a.cancel() // of ctx, which would stay with its session's
	b := t.session.bound
	var err error
	a.grant, err = b.wait(ctx, c, t.request, sync.OnceFunc(func() { close(a.waiting) }))
	t.finish(ctx, a, c, err)
}

// waits reports whether the server has said that the lock is taken. If the caller ends the waiting
// after that, as each bounded one may, nothing is known to be wrong with the other connections.
// Where the network has fallen silent meanwhile, the next lock finds that out.
func (a *attempt) waits() bool {
	select {
	case <-a.waiting:
		return true
	default:
		return false
	}
}

// finish ends the attempt.
func (t *boundTicket) finish(ctx context.Context, a *attempt, c *pgxLink, err error) {
	s, b := t.session, t.session.bound
	switch {
	case err != nil:
		// What the server has done it undoes when the connection ends.
		a.err = explain(ctx, err)
		if noSchema(err) {
			b.forget() // dropped; the core asks again, and then they are made again
		}
		c.close()
		if ctx.Err() == nil || !a.waits() {
			b.dropIdle() // they are likely to be as broken as this: a server that restarts breaks all
		}
	case !a.held:
		b.keep(c)
	default:
		a.hold = s.hold(c, func(err error) { t.lose(a, err) }, t.recorder(c, a.grant))
	}
	close(a.ended)
}
