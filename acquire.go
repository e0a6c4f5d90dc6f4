package hasp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hasplock/hasp/driver"
)

// acquire is the only acquisition path: check, wait in the local queue, enqueue, wait, leave if it
// came to nothing.
func (c *Client) acquire(ctx context.Context, r *request, err error) (*Lease, error) {
	if err == nil {
		err = c.check(ctx, r)
	}
	if err != nil {
		return nil, c.wrap(ctx, r.op, r.name, err)
	}
	h := holderOf(ctx)
	if have := holding(h, c, r); have != nil && (r.reentrant || !r.noWait) {
		l, err := have.again(ctx, r)
		if err != nil {
			return nil, c.wrap(ctx, r.op, r.name, err)
		}
		return l, nil
	}
	r.owner = whileHolding(h, r.owner, r.holds)
	r.began = time.Now()
	l, err := c.enter(ctx, r)
	if err != nil && !withdrawn(ctx, err) {
		c.event(r.describe(Event{Kind: EventFailed, Context: ctx, Wait: time.Since(r.began), Err: err}))
	}
	if err != nil {
		return nil, c.wrap(ctx, r.op, r.name, err)
	}
	c.begin(ctx, r, l)
	return l, nil
}

// begin reports a new lease, and begins what lasts as long as it.
func (c *Client) begin(ctx context.Context, r *request, l *Lease) {
	if c.observed() {
		c.event(r.describe(Event{Kind: EventAcquired, Context: ctx, Token: l.Token(), Wait: l.since.At.Sub(r.began)}))
	}
	if r.revoked != nil {
		go c.listen(l, r) // ends with the lease
	}
}

// describe adds to the event that ends an acquisition what was asked for.
func (r *request) describe(e Event) Event {
	e.Name, e.Op, e.Units, e.Capacity = r.name, r.op, r.units, r.capacity
	return e
}

// check refuses what is wrong before any I/O.
func (c *Client) check(ctx context.Context, r *request) error {
	if ctx == nil {
		return errNilContext
	}
	if err := driver.CheckName(r.name); err != nil {
		return err
	}
	if err := checkValue(r.value); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return contextError(ctx)
	}
	return nil
}

// enter is the way to the store: past those of this process who came before.
func (c *Client) enter(ctx context.Context, r *request) (l *Lease, err error) {
	if r.noWait {
		return c.inQueue(ctx, r)
	}
	if err := c.localQueues.enter(ctx, r); err != nil {
		return nil, c.overdue(ctx, r, contextError(ctx))
	}
	defer func() { c.localQueues.leave(r, l != nil) }()
	return c.inQueue(ctx, r)
}

// inQueue acquires in the session of the moment, and in the next one if that dies with our entry: a
// new id, a place at the end. Before the entry has been in the queue, it returns the error of an
// unreachable store: a refused connection at once, a silent server after the TTL. After that it
// outlasts outages for as long as its context allows: the address is known to be right, and a
// deploy that waits should survive a restart of the store. Rejected: always retrying (a wrong
// address hangs), never retrying (every waiter dies with a failover).
func (c *Client) inQueue(ctx context.Context, r *request) (*Lease, error) {
	var b backoff
	for queued, goneAgain := false, 0; ; {
		s, err := c.session(ctx)
		if err == nil {
			var l *Lease
			var q bool
			l, q, err = s.attempt(ctx, r)
			if err == nil {
				return l, nil
			}
			queued = queued || q
		}
		queued = queued || waited(ctx)
		gone := errors.Is(err, driver.ErrGone)
		if gone {
			goneAgain++
		}
		switch {
		case refusedTry(err), errors.Is(err, ErrClosed), errors.Is(err, ErrDeadlock), final(err):
			return nil, err
		case ctx.Err() != nil && queued:
			return nil, c.overdue(ctx, r, unconfirmed(ctx, err))
		case ctx.Err() != nil:
			return nil, unconfirmed(ctx, err)
		case !queued && (unreachable(err) || !gone || r.noWait && goneAgain > 3):
			return nil, unanswered(err)
		}
		c.event(Event{Kind: EventRequeued, Context: ctx, Name: r.name, Err: err})
		// The first time at once: an idle session may have expired without anybody's fault.
		if again := !gone || goneAgain > 1; again && !b.sleep(ctx) {
			return nil, contextError(ctx)
		}
	}
}

// unreachable reports that a session ended because the store did not answer. One that ended because
// this process was paused is another matter: there trying again helps.
func unreachable(err error) bool {
	var e *endedError
	return errors.As(err, &e) && e.reason == ReasonExpired && e.err != nil
}

// unanswered adds ErrUnknown to an error of the store's client library, unless the store has
// refused the request: a refusal is an answer.
func unanswered(err error) error {
	if errors.Is(err, ErrUnknown) || errors.Is(err, ErrRefused) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnknown, err)
}

// attempt puts one entry into this session and waits until it holds. queued reports
// whether the store has confirmed the entry as waiting.
func (s *session) attempt(caller context.Context, r *request) (_ *Lease, queued bool, err error) {
	// Ends with the caller's context or with the session (see interrupt): a waiter must not
	// outlive either.
	ctx, cancel := context.WithCancelCause(caller)
	defer cancel(nil)
	e := &entry{
		session: s, id: s.client.newID(), name: r.name, units: int32(r.units), capacity: int32(r.capacity),
		limit: newLimit(r.limits), cancel: cancel,
	}
	if err := s.add(e); err != nil {
		return nil, false, err
	}
	e.ticket = s.drv.Ticket(driver.Request{
		Name: r.name, ID: e.id, Units: r.units, Capacity: r.capacity,
		Owner: r.owner, Since: r.began, Value: r.value, NoWait: r.noWait,
	})
	var failures backoff
	v, unsure, err := s.ask(ctx, e.ticket.Enqueue, false)
	for err == nil && !v.Held && !r.noWait {
		if !queued {
			queued = true
			s.client.event(Event{Kind: EventWaiting, Context: caller, Name: r.name, Place: v.Place})
			if r.deadlock > 0 && (len(r.holds) > 0 || caller.Value(leaseKey{}) != nil) {
				go s.client.watchDeadlock(ctx, e.id, r.deadlock, cancel) // ends with ctx
			}
		}
		v, err = s.wait(ctx, e, v.Retry, &failures)
		unsure = true // there is an entry now, unless the store says otherwise
	}
	if err == nil && !v.Held {
		s.remove(e)
		return nil, false, refusal(v)
	}
	if err == nil {
		var l *Lease
		if l, err = e.grant(caller, v.Token); err == nil {
			return l, queued, nil
		}
	}
	s.abandon(caller, e, unsure || ctx.Err() != nil || !final(err) && !errors.Is(err, driver.ErrRefused))
	if cause := context.Cause(ctx); caller.Err() == nil && cause != nil {
		err = cause // the session ended under us: that is the news, not the cancelled call
	}
	return nil, queued, err
}

// abandon removes the entry of a failed acquisition. The clean-up has a separate context: the
// caller's has often just ended, and an entry left behind would block its queue until the TTL, or
// for as long as this client lives.
func (s *session) abandon(caller context.Context, e *entry, mayExist bool) {
	s.remove(e)
	e.mu.Lock()
	if e.state == pending {
		e.state, e.err = released, ErrNotHeld
	}
	e.mu.Unlock()
	if mayExist && !s.over() { // an ended session is removed as a whole
		s.client.cleanTicket(caller, s, e.ticket)
	}
}

// ask enqueues, or asks again, until the store answers. A request without an answer is
// repeated under the same id: it may have been applied, and the store then finds the
// entry instead of making a second. unsure reports that this happened. A caller that does
// not wait in the queue yet is not kept longer than a TTL by a store that only fails.
func (s *session) ask(ctx context.Context, enqueue func(context.Context) (driver.Verdict, error), queued bool) (v driver.Verdict, unsure bool, err error) {
	var b backoff
	began := time.Now()
	for {
		v, err = enqueue(ctx)
		switch {
		case err == nil, errors.Is(err, driver.ErrGone), final(err):
			return v, unsure, err
		case errors.Is(err, driver.ErrRefused):
			if !queued {
				return v, unsure, err
			}
		case !queued && time.Since(began) >= s.client.cfg.ttl:
			return v, true, fmt.Errorf("%w: %w", ErrUnknown, err)
		default:
			unsure = true
		}
		if !b.sleep(ctx) {
			return v, unsure, err
		}
	}
}

// wait returns when there is something new: the store reported it, or it asked to be asked.
// An error of Wait that is not final is answered by asking, too, after a pause: if only
// waiting fails, asking must not become a busy loop.
func (s *session) wait(ctx context.Context, e *entry, retry time.Duration, failures *backoff) (driver.Verdict, error) {
	wctx := ctx
	if retry > 0 {
		var cancel context.CancelFunc
		wctx, cancel = context.WithTimeout(ctx, retry)
		defer cancel()
	}
	v, err := e.ticket.Wait(wctx)
	switch {
	case err == nil:
		*failures = backoff{}
		return v, nil
	case errors.Is(err, driver.ErrGone), final(err), ctx.Err() != nil:
		return v, err
	case wctx.Err() == nil && !failures.sleep(ctx):
		return v, err
	}
	return s.askAgain(ctx, e)
}

// askAgain asks for an entry that waits, until the store answers. The observers hear of the first
// refusal, and not of each: only an operator can cure it, and the waiter goes on asking, so that
// nothing else would report it. If ctx ends, the refusal is the error, since it says more than a
// request that was given up.
func (s *session) askAgain(ctx context.Context, e *entry) (driver.Verdict, error) {
	var refused error
	v, _, err := s.ask(ctx, func(ctx context.Context) (driver.Verdict, error) {
		v, err := e.ticket.Enqueue(ctx)
		if errors.Is(err, driver.ErrRefused) {
			if refused == nil {
				s.client.event(Event{Kind: EventWaiting, Context: ctx, Name: e.name, Err: ofStore(err)})
			}
			refused = err
		}
		return v, err
	}, true)
	if err != nil && ctx.Err() != nil && refused != nil {
		err = refused
	}
	return v, err
}

// contextError is the error of a call that ended with its context before anything could
// be left in the store: the context's own error, and its cause where that says more.
func contextError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == nil || errors.Is(cause, err) && errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// unconfirmed adds what the store said last to the context's error, if it said anything
// else.
func unconfirmed(ctx context.Context, last error) error {
	err := contextError(ctx)
	if last == nil || errors.Is(last, context.Canceled) || errors.Is(last, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%w (last: %w)", err, last)
}

// wrap names the lock and the store in the error of a call with ctx.
func (c *Client) wrap(ctx context.Context, op, name string, err error) error {
	if ctx != nil && ctx.Err() == nil {
		err = ofStore(err)
	}
	return &LockError{Op: op, Name: name, Backend: c.backend.String(), Err: err}
}
