package redislock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/redisconn"
	"github.com/hasplock/hasp/internal/signal"
)

// attempt is the ticket of one lock of a dialect.
type attempt struct {
	session *attemptSession
	request driver.Request
	number  string
	keys    []string      // set by the first Enqueue
	since   string        // the store's time of our first try, which orders our own waiters
	bell    signal.Signal // try again

	// Guarded by session.mu.
	sent    bool      // the key may be ours
	doubt   bool      // a request was not answered: it may yet take the key
	renewed time.Time // when the last request was sent that gave the key its TTL, if it is ours
	held    bool      // the store has said so
	waiting bool      // counted in session.names
	queued  bool      // the core has been told to wait
	left    bool      // a late Enqueue must not take anything
	gone    bool
}

// member is how the waiter is noted at the store, if it can be woken there.
func (t *attempt) member() string {
	if t.request.NoWait || t.session.store.dialect.announces {
		return ""
	}
	return t.session.id + " " + t.request.ID
}

// Enqueue tries.
func (t *attempt) Enqueue(ctx context.Context) (driver.Verdict, error) {
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

// register notes that a request for the key is about to be sent, and who waits for it.
func (t *attempt) register(keys []string, waits bool) error {
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
		t.renewed = time.Now() // before anything is sent
	}
	t.sent = true
	s.tickets[t.request.ID] = t
	if waits && !t.waiting {
		t.waiting = true
		s.listenLocked(t)
	}
	return nil
}

// listenLocked listens for the releases of the name, where the dialect announces them. It
// begins before the first try: a release between a try and the listening would be missed.
func (s *attemptSession) listenLocked(t *attempt) {
	if !s.store.dialect.announces {
		return
	}
	key := t.keys[0]
	n := s.names[key]
	if n == nil {
		ctx, cancel := context.WithCancel(s.done)
		n = &nameWaiters{stop: cancel}
		s.names[key] = n
		ring := func() { s.ringName(key) }
		l := &redisconn.Listener{
			Conn: s.store.conn, Channel: redissonChannel(key),
			Message: func(string) { ring() }, Subscribed: func(context.Context) { ring() },
		}
		go l.Run(ctx)
	}
	n.waiting++
}

// ringName wakes whoever waits for the key, also when the subscription stands: a release
// may have happened before.
func (s *attemptSession) ringName(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tickets {
		if t.waiting && t.keys[0] == key {
			t.bell.Notify()
		}
	}
}

// ignoreLocked ends the listening for a ticket that no longer waits.
func (s *attemptSession) ignoreLocked(t *attempt) {
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
func (t *attempt) try(ctx context.Context) (driver.Verdict, error) {
	s := t.session
	d := s.store.dialect
	args := append([]string{d.me(t), millis(s.opts.TTL), s.counter}, d.takeArgs(t)...)
	r := s.store.conn.Eval(ctx, d.take, redisconn.Call{Keys: t.keys, Args: args}, s.store.opts.Replicas)
	if r.Err != nil {
		err := wrongType(t.request.Name, r.Err)
		t.failed(err)
		return driver.Verdict{}, identify(ctx, s.store.conn, t.keys[0], err)
	}
	parts, _ := r.Value.([]any)
	if len(parts) >= 3 && d.stranger(parts[2]) {
		err := foreign(t.request.Name)
		t.failed(err)
		return driver.Verdict{}, identify(ctx, s.store.conn, t.keys[0], err)
	}
	number := func(i int) int64 { n, _ := parts[i].(int64); return n }
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case t.left || s.closed:
		return driver.Verdict{}, errSessionClosed // Leave and Close gave back what this took
	case len(parts) == 2 && number(0) == 1:
		t.held = true
		s.ignoreLocked(t)
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
		return t.refused(holder, time.Duration(number(1))*time.Millisecond), nil
	}
	return driver.Verdict{}, fmt.Errorf("unexpected answer %v", r.Value)
}

// failed notes that an attempt has come to nothing. One that the store has refused leaves
// nothing that would have to be renewed or left, unless an earlier one may still be on its
// way. The core does not ask again for one that was refused before it waited.
func (t *attempt) failed(err error) {
	s := t.session
	s.mu.Lock()
	defer s.mu.Unlock()
	t.doubt = t.doubt || !errors.Is(err, driver.ErrRefused) && !errors.Is(err, driver.ErrMismatch)
	if t.doubt {
		return
	}
	t.sent = false
	if !t.queued {
		s.ignoreLocked(t)
		delete(s.tickets, t.request.ID)
	}
}

// refused says when to try again without being woken: when the holder's key expires, with
// some jitter, lest all waiters try together, and sooner if nobody announces its release.
func (t *attempt) refused(holder string, left time.Duration) driver.Verdict {
	d := t.session.store.dialect
	if left <= 0 {
		left = noExpiry
	}
	owner := holder
	if d.foreign(holder) {
		left = min(left, foreignPoll)
	} else if _, rest, ok := strings.Cut(holder, " "); ok {
		_, owner, _ = strings.Cut(rest, " ")
	}
	return driver.Verdict{Holder: owner, Retry: left + rand.N(left/8+10*time.Millisecond)}
}

// Wait tries again when it is woken.
func (t *attempt) Wait(ctx context.Context) (driver.Verdict, error) {
	s := t.session
	select {
	case <-t.bell.C():
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
	return t.Enqueue(ctx)
}

// Leave gives back.
func (t *attempt) Leave(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := t.session
	s.mu.Lock()
	t.left = true
	known := t.keys != nil && (t.sent || t.waiting)
	delete(s.tickets, t.request.ID)
	s.ignoreLocked(t)
	s.mu.Unlock()
	if !known {
		return driver.ErrGone
	}
	r := s.store.conn.Eval(ctx, s.store.dialect.give, t.giveCall(), 0)
	if redisconn.Answered(r.Err) == "WRONGTYPE" || r.Err == nil && r.Value != int64(1) {
		return driver.ErrGone
	}
	return r.Err
}

func (t *attempt) giveCall() redisconn.Call {
	a := t.session.store
	return a.giveCall(t.keys, a.dialect.me(t), t.member())
}
