package redislock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/bootclock"
	"github.com/hasplock/hasp/driver/kit/signal"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// oneKeyTicket is the ticket of one lock of a dialect.
type oneKeyTicket struct {
	session *oneKeySession
	request driver.Request
	number  string
	keys    []string      // set by the first Enqueue
	since   string        // the store's time of our first attempt, which orders hasp's waiters; see sinceUnknown
	signal  signal.Signal // try again

	// Guarded by session.mu.
	sent      bool              // the key may be ours
	uncertain bool              // a request was not answered: it may still take the key
	renewed   bootclock.Instant // when the last request was sent that gave the key its TTL, if it is ours
	held      bool              // the store has said so
	waiting   bool              // session.names counts it
	queued    bool              // the core has been told to wait
	left      bool              // a late Enqueue must not take anything
	gone      bool
	missed    bool // a renewal has not found the key for which a request was under way
}

// member is the waiter's member in the set of waiters; "" if it is not woken from there.
func (t *oneKeyTicket) member() string {
	if t.request.NoWait || t.session.store.dialect.announces {
		return ""
	}
	return t.session.id + " " + t.request.ID
}

// sinceUnknown says that an earlier attempt may have made us a waiter, and that its answer is lost.
const sinceUnknown = "?"

// Enqueue tries.
func (t *oneKeyTicket) Enqueue(ctx context.Context) (driver.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return driver.Verdict{}, err
	}
	r := t.request
	if r.Units != driver.Whole || r.Capacity != driver.Whole || len(r.Value) > 0 {
		return driver.Verdict{}, fmt.Errorf("%w: strategy=%s has mutexes only", driver.ErrUnsupported, t.session.store.opts.Strategy)
	}
	keys, err := t.session.store.keys(r.Name)
	if err != nil {
		return driver.Verdict{}, err
	}
	if err := t.register(keys, !r.NoWait); err != nil {
		return driver.Verdict{}, err
	}
	return t.try(ctx)
}

// register notes that a request for the key is about to be sent, and whether the ticket waits.
func (t *oneKeyTicket) register(keys []string, waits bool) error {
	s := t.session
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return errSessionClosed
	case t.left || t.gone:
		return fmt.Errorf("%w: it has left, or was lost", driver.ErrGone)
	}
	if t.keys == nil { // never again: a renewal may be reading them
		t.keys = keys
	}
	if !t.sent {
		t.renewed = bootclock.Now() // before anything is sent
	}
	t.sent = true
	s.tickets[t.request.ID] = t
	if waits && !t.waiting {
		t.waiting = true
		s.listenLocked(t)
	}
	return nil
}

// listenLocked listens for the releases of the name if the dialect announces them. It begins
// before the first attempt: a release between an attempt and the subscription would be missed.
func (s *oneKeySession) listenLocked(t *oneKeyTicket) {
	if !s.store.dialect.announces {
		return
	}
	key := t.keys[0]
	n := s.names[key]
	if n == nil {
		ctx, cancel := context.WithCancel(s.done)
		n = &nameWaiters{stop: cancel}
		s.names[key] = n
		notify := func() { s.notifyName(key) }
		l := &redisconn.Listener{
			Conn: s.store.conn, Channel: redissonChannel(key),
			Message: func(string) { notify() }, Subscribed: func(context.Context) { notify() },
		}
		go l.Run(ctx)
	}
	n.waiting++
}

// notifyName wakes the waiters for the key. It is also called when the subscription is
// established: a release may have happened before.
func (s *oneKeySession) notifyName(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tickets {
		if t.waiting && t.keys[0] == key {
			t.signal.Notify()
		}
	}
}

// unlistenLocked ends the listening for a ticket that no longer waits.
func (s *oneKeySession) unlistenLocked(t *oneKeyTicket) {
	if !t.waiting {
		return
	}
	t.waiting = false
	if n := s.names[t.keys[0]]; n != nil {
		if n.waiting--; n.waiting == 0 {
			n.stop()
			delete(s.names, t.keys[0])
		}
	}
}

// try makes one attempt.
func (t *oneKeyTicket) try(ctx context.Context) (driver.Verdict, error) {
	s := t.session
	d := s.store.dialect
	args := append([]string{d.me(t), millis(s.opts.TTL), s.counter}, d.takeArgs(t)...)
	r := s.store.guard.Eval(ctx, d.take, redisconn.Call{Keys: t.keys, Args: args}, s.store.opts.Replicas)
	if r.Err != nil {
		err := wrongType(t.request.Name, r.Err)
		t.recordFailure(err)
		return driver.Verdict{}, describeForeign(ctx, s.store.conn, s.store.opts.Strategy, t.keys[0], err)
	}
	parts, _ := r.Value.([]any)
	closed := len(parts) == 5
	if len(parts) >= 3 && !closed && d.notALock(parts[2]) {
		err := errForeign(t.request.Name)
		t.recordFailure(err)
		return driver.Verdict{}, describeForeign(ctx, s.store.conn, s.store.opts.Strategy, t.keys[0], err)
	}
	number := func(i int) int64 { n, _ := parts[i].(int64); return n }
	if len(parts) == 2 && t.wasMissed() {
		return t.try(ctx) // as session.Enter does
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case t.left || s.closed:
		return driver.Verdict{}, errSessionClosed // Leave and Close have released what this took
	case len(parts) == 2 && number(0) == 1:
		t.held = true
		s.unlistenLocked(t)
		return driver.Verdict{Held: true, Token: uint64(number(1))}, nil
	case len(parts) >= 3:
		t.sent, t.queued = false, true
		holder, _ := parts[2].(string)
		if len(parts) > 3 {
			t.since, _ = parts[3].(string)
		}
		if t.request.NoWait {
			delete(s.tickets, t.request.ID)
		}
		left := time.Duration(number(1)) * time.Millisecond
		if closed {
			return driver.Verdict{Quarantine: left, Retry: withJitter(left)}, nil
		}
		return t.refused(holder, left), nil
	}
	return driver.Verdict{}, fmt.Errorf("unexpected answer %v", r.Value)
}

// wasMissed reports, once, that a renewal has not found the key.
func (t *oneKeyTicket) wasMissed() (is bool) {
	t.session.mu.Lock()
	defer t.session.mu.Unlock()
	is, t.missed = t.missed, false
	return is
}

// recordFailure notes that an attempt has failed. If the store has refused it, there is nothing to
// renew or to leave, unless an earlier attempt may still be on its way. The core does not ask
// again after a refusal before the first wait.
func (t *oneKeyTicket) recordFailure(err error) {
	s := t.session
	s.mu.Lock()
	defer s.mu.Unlock()
	t.uncertain = t.uncertain || !errors.Is(err, driver.ErrRefused) && !errors.Is(err, driver.ErrMismatch)
	if t.uncertain {
		if t.since == "" {
			t.since = sinceUnknown
		}
		return
	}
	t.sent = false
	if !t.queued {
		s.unlistenLocked(t)
		delete(s.tickets, t.request.ID)
	}
}

// refused says when to try again without being woken: when the holder's key expires, with some
// jitter, so that not all waiters try together; sooner if no message announces the release.
func (t *oneKeyTicket) refused(holder string, left time.Duration) driver.Verdict {
	owner, next := holder, left
	if left <= 0 {
		next = noExpiry
	}
	if t.session.store.dialect.foreign(holder) {
		next = min(next, foreignPoll)
	} else if _, rest, ok := strings.Cut(holder, " "); ok {
		_, owner, _ = strings.Cut(rest, " ")
	}
	if left < 0 {
		owner += neverExpires
	}
	return driver.Verdict{Holder: owner, Retry: withJitter(next)}
}

// withJitter lets waiters that wait for the same moment try one after the other.
func withJitter(left time.Duration) time.Duration { return left + rand.N(left/8+10*time.Millisecond) }

// Wait tries again when it is woken.
func (t *oneKeyTicket) Wait(ctx context.Context) (driver.Verdict, error) {
	s := t.session
	select {
	case <-t.signal.C():
	case <-s.done.Done():
		return driver.Verdict{}, errSessionClosed
	case <-ctx.Done():
		return driver.Verdict{}, ctx.Err()
	}
	s.mu.Lock()
	gone := t.gone
	s.mu.Unlock()
	if gone {
		return driver.Verdict{}, driver.ErrGone
	}
	v, err := t.Enqueue(ctx)
	if err != nil {
		t.signal.Notify() // what it told has no answer yet: the next wait asks
	}
	return v, err
}

// Leave releases the key, and removes the waiter. One that has had no answer asks again: a waiter
// whose place stays at the store is woken in place of one that waits.
func (t *oneKeyTicket) Leave(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := t.session
	s.mu.Lock()
	t.left = true
	known := t.keys != nil && (t.sent || t.waiting || s.leaving[t])
	delete(s.tickets, t.request.ID)
	if known && !s.closed { // Close has taken over the others
		s.leaving[t] = true
	}
	s.unlistenLocked(t)
	s.mu.Unlock()
	if !known {
		return driver.ErrGone
	}
	r := s.store.conn.Eval(ctx, s.store.dialect.give, t.giveCall(), 0)
	if leaveDone(r.Err) {
		s.mu.Lock()
		delete(s.leaving, t)
		s.mu.Unlock()
	}
	if redisconn.Answered(r.Err) == "WRONGTYPE" || r.Err == nil && r.Value != int64(1) {
		return driver.ErrGone
	}
	return redisconn.Refusal(r.Err)
}

// giveCall is for a ticket that has left. One that holds is no waiter any more, unless an attempt
// whose answer is lost has made it one since.
func (t *oneKeyTicket) giveCall() redisconn.Call {
	a, member := t.session.store, ""
	t.session.mu.Lock()
	if !t.held || t.uncertain {
		member = t.member()
	}
	t.session.mu.Unlock()
	return a.giveCall(t.keys, a.dialect.me(t), member)
}
