package pglock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
)

// boundSession is a client's locks and waiters, each on a connection of its own.
type boundSession struct {
	bound *bound
	opts  driver.SessionOptions

	done   context.Context // ended by Close: every connection ends with it
	finish context.CancelFunc

	mu     sync.Mutex
	closed bool
	grips  map[*boundTicket]bool // those that may have a connection
}

// granted is the TTL within the bounds that the connections set.
func (s *boundSession) granted() time.Duration {
	return min(max(s.opts.TTL, leastGranted), mostGranted)
}

// boundTicket is the ticket of a lock that a connection holds.
type boundTicket struct {
	session *boundSession
	request driver.Request

	// Guarded by session.mu.
	try  *try // under way, or holding; nil: nothing is at the server
	left bool
	gone bool
	pid  uint32 // of a connection that we gave up without an answer, and that may still hold
}

// try is one connection's way to the lock.
type try struct {
	cancel  context.CancelFunc
	waiting chan struct{} // closed when it is known to be taken, and waited for
	ended   chan struct{} // closed when the fields below are set
	grant
	err  error
	hold *heldConn // if it is held
}

// Ticket prepares an entry.
func (s *boundSession) Ticket(r driver.Request) driver.Ticket {
	return &boundTicket{session: s, request: r}
}

// Enqueue starts to take the lock, unless that is under way, and answers how far it is. The
// taking goes on when the call's context ends, until Leave or Close ends it.
func (t *boundTicket) Enqueue(ctx context.Context) (driver.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return driver.Verdict{}, err
	}
	s, r := t.session, t.request
	if r.Units != driver.Whole || r.Capacity != driver.Whole || len(r.Value) > 0 {
		return driver.Verdict{}, fmt.Errorf("%w: strategy=%s has mutexes only", driver.ErrUnsupported, s.bound.opts.Strategy)
	}
	if err := s.bound.kind.check(r.Name); err != nil {
		return driver.Verdict{}, err
	}
	a, err := t.start()
	if err != nil {
		return driver.Verdict{}, err
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

func (t *boundTicket) start() (*try, error) {
	s := t.session
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, errSessionClosed
	case t.left || t.gone:
		return nil, fmt.Errorf("%w: it has left, or was lost", driver.ErrGone)
	case t.try == nil:
		ctx, cancel := context.WithCancel(s.done)
		t.try = &try{cancel: cancel, waiting: make(chan struct{}), ended: make(chan struct{})}
		s.grips[t] = true
		go t.run(ctx, t.try)
	}
	return t.try, nil
}

// run takes the lock on a connection that nobody else knows.
func (t *boundTicket) run(ctx context.Context, a *try) {
	defer close(a.ended)
	s, b := t.session, t.session.bound
	c, err := b.link(ctx)
	if err != nil {
		a.err = err
		return
	}
	taken := sync.OnceFunc(func() { close(a.waiting) })
	if t.request.NoWait {
		taken = nil
	}
	a.grant, a.err = b.kind.take(ctx, b, c, t.request, taken)
	if a.err == nil && !a.held {
		b.keep(c)
		return
	}
	if a.err != nil {
		// Whatever the server did, it undoes when the connection ends. Idle ones are likely
		// to be as broken as this: a server that restarts breaks all.
		a.err = explain(ctx, a.err)
		c.close()
		b.dropIdle()
		return
	}
	a.hold = newHeldConn(s.done, c, func(err error) { t.lose(a, err) })
}

// outcome reads what came of a try.
func (t *boundTicket) outcome(a *try) (driver.Verdict, error) {
	s := t.session
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case t.gone || t.left:
		return driver.Verdict{}, driver.ErrGone
	case a.held && a.err == nil:
		return driver.Verdict{Held: true, Token: a.token}, nil
	}
	if t.try == a {
		t.try = nil
		delete(s.grips, t)
	}
	return driver.Verdict{Holder: a.holder}, a.err
}

// lose tells that the connection of a held lock has ended.
func (t *boundTicket) lose(a *try, cause error) {
	s := t.session
	s.mu.Lock()
	mine := t.try == a && !t.left && !t.gone
	if mine {
		t.gone = true
		delete(s.grips, t)
	}
	s.mu.Unlock()
	if mine {
		s.opts.Gone(t.request.ID, fmt.Errorf("%w: the connection that held it has ended: %w", driver.ErrGone, cause))
	}
}

// Wait returns when the lock is held, or the connection that waits for it has ended: the
// place in the server's queue has gone with it.
func (t *boundTicket) Wait(ctx context.Context) (driver.Verdict, error) {
	s := t.session
	s.mu.Lock()
	a, gone := t.try, t.gone || s.closed
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
	a, pid, gone := t.try, t.pid, t.gone
	s.mu.Unlock()
	if a == nil && pid == 0 || gone {
		return driver.ErrGone
	}
	if pid != 0 {
		return t.ensureReleased(ctx, pid)
	}
	a.cancel() // has no effect on what is held
	select {
	case <-a.ended:
	case <-ctx.Done():
		return ctx.Err()
	}
	if a.hold == nil {
		t.forget(0)
		return nil
	}
	return t.give(ctx, a.hold)
}

// give releases what is held. Without an answer the connection is ended, and with it the
// lock, as soon as the server sees that.
func (t *boundTicket) give(ctx context.Context, h *heldConn) error {
	b := t.session.bound
	var held bool
	answered := false
	err := h.use(ctx, true, func(ctx context.Context, c *pgxLink) (err error) {
		held, err = b.kind.give(ctx, b, c, t.request)
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
	case endedBefore(err):
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
	t.try, t.pid = nil, pid
	delete(s.grips, t)
}

// ensureReleased makes sure that a connection we gave up holds nothing: a network that swallowed the
// answer may have swallowed the end of the connection, too.
func (t *boundTicket) ensureReleased(ctx context.Context, pid uint32) error {
	b := t.session.bound
	ours := "" // the entry as it is listed: a number that was used again is another's
	err := b.eachHolder(ctx, t.request.Name, func(e driver.Entry, p int64) {
		if uint32(p) == pid && (e.ID == t.request.ID || e.ID == e.Session) {
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

// KeepAlive has the server answer on every connection that holds. A request that is not
// answered in time goes on: giving the connection up would give up the lock. Only a request
// sent by this very call counts, since the core counts from here.
func (s *boundSession) KeepAlive(ctx context.Context) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	var holds []*heldConn
	for t := range s.grips {
		select {
		case <-t.try.ended:
			if t.try.hold != nil && !t.left {
				holds = append(holds, t.try.hold)
			}
		default:
		}
	}
	s.mu.Unlock()
	answers := make(chan error, len(holds)) // nobody waits for the rest after the first that fails
	for _, h := range holds {
		go func() {
			within, cancel := context.WithTimeout(s.done, s.granted())
			defer cancel()
			answers <- h.use(within, false, func(ctx context.Context, c *pgxLink) error {
				return c.script(ctx, "SELECT 1")
			})
		}()
	}
	for range holds {
		select {
		case err := <-answers:
			// A broken connection has been told of; the others are not concerned.
			if err != nil && sqlState(err) == "" && s.done.Err() != nil {
				return 0, errSessionClosed
			}
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return s.granted(), nil
}

// Close releases everything. What is not answered in time ends with its connection.
func (s *boundSession) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	var all []*boundTicket
	for t := range s.grips {
		all = append(all, t)
	}
	s.mu.Unlock()
	left := make(chan error, len(all))
	for _, t := range all {
		go func() { left <- t.Leave(ctx) }()
	}
	var err error
	for range all {
		if e := <-left; e != nil && !errors.Is(e, driver.ErrGone) {
			err = e
		}
	}
	s.finish()
	return err
}
