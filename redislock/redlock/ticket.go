package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/bootclock"
	"github.com/hasplock/hasp/driver/kit/signal"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
	"github.com/hasplock/hasp/redislock/internal/setnx"
)

// ticket is one entry: its attempts, and the keys it may have.
type ticket struct {
	session *session
	request driver.Request
	signal  signal.Signal // try again

	// Guarded by session.mu.
	keys       []string // set by the first Enqueue
	attempt    uint64   // numbers the attempts; see value.go
	me         string   // of the attempt that claims are about; "" when it has failed: late answers are not for it
	published  *published
	claims     []claim           // the key with the value me at each server
	since      []string          // since when it waits, by each server's clock; nil: at none
	waiterAt   []bool            // each server that may have us among its waiters
	granted    bool              // it was held once
	renewed    bootclock.Instant // before the requests were sent that gave it its TTL on a majority, while it is held
	left       bool              // Leave was called, or the session closed: a late Enqueue must not take anything
	gone       bool              // the core knows that it is not held any more
	collisions int32             // attempts in a row that met other attempts
	announced  announcements
}

// holdsLocked reports whether it is held.
func (t *ticket) holdsLocked() bool { return t.granted && !t.left && !t.gone }

// claim is the state of our key at one server, as far as we know.
type claim uint8

const (
	free  claim = iota // it is not there
	asked              // a request for it is under way
	mine               // it is there
	maybe              // the answer to a request for it is lost

	// When we have left:
	leaving  // it is not yet known to be gone
	doubtful // nor is it, and the answer to a request to remove it is lost
	removed  // we have removed it
	perhaps  // it is not there, and a request whose answer is lost may have removed it
)

// leaves reports whether the release of the key is not confirmed yet.
func (c claim) leaves() bool { return c == leaving || c == doubtful }

// count returns how many servers have one of the claims.
func (t *ticket) count(claims ...claim) int {
	n := 0
	for _, c := range t.claims {
		for _, want := range claims {
			if c == want {
				n++
			}
		}
	}
	return n
}

// member is how a waiter is noted at the servers, if it waits.
func (t *ticket) member() string {
	if t.request.NoWait {
		return ""
	}
	return t.session.id + " " + t.request.ID
}

// Enqueue makes an attempt. A refused try that has met only other attempts makes a
// few more: with N servers all that try at the same moment can fail.
func (t *ticket) Enqueue(ctx context.Context) (driver.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return driver.Verdict{}, err
	}
	if r := t.request; r.Units != driver.Whole || r.Capacity != driver.Whole {
		return driver.Verdict{}, fmt.Errorf("%w: redlock has mutexes and elections only", driver.ErrUnsupported)
	}
	keys, err := t.session.store.keys(t.request.Name)
	if err != nil {
		return driver.Verdict{}, err
	}
	const tries = 4
	for n := 1; ; n++ {
		if err := t.register(keys); err != nil {
			return driver.Verdict{}, err
		}
		v, established, err := t.try(ctx)
		if err != nil || v.Held || !t.request.NoWait {
			return v, err
		}
		if established || n == tries {
			t.forget()
			return driver.Verdict{Holder: v.Holder, Quarantine: v.Quarantine}, nil
		}
		timer := time.NewTimer(v.Retry)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return driver.Verdict{}, ctx.Err()
		}
	}
}

// register notes that requests for the ticket are about to be sent.
func (t *ticket) register(keys []string) error {
	s := t.session
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return errSessionClosed
	case t.left || t.gone:
		return fmt.Errorf("%w: it has left, or was lost", driver.ErrGone)
	}
	if t.keys == nil { // never again: requests under way read them
		t.keys = keys
	}
	s.tickets[t.request.ID] = t
	return nil
}

// forget drops a refused try, which has only pending releases.
func (t *ticket) forget() {
	t.session.mu.Lock()
	defer t.session.mu.Unlock()
	delete(t.session.tickets, t.request.ID)
}

// Wait tries again when it is woken.
func (t *ticket) Wait(ctx context.Context) (driver.Verdict, error) {
	s := t.session
	select {
	case <-t.signal.C():
	case <-s.open.Done():
		return driver.Verdict{}, errSessionClosed
	case <-ctx.Done():
		return driver.Verdict{}, ctx.Err()
	}
	v, err := t.Enqueue(ctx)
	if err != nil {
		t.signal.Notify() // what it told has no answer yet: the next wait asks
	}
	return v, err
}

// Publish replaces the value on a majority. Each copy has a version, and a reader of a
// majority takes the newest, so that a confirmed value is read from then on. A value that is not
// confirmed may be read once, and not the next time, until it is confirmed.
func (t *ticket) Publish(ctx context.Context, value []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := t.session
	s.mu.Lock()
	if !t.holdsLocked() {
		s.mu.Unlock()
		return fmt.Errorf("%w: it is not held", driver.ErrGone)
	}
	p := &published{t.publishedLocked().version + 1, slices.Clone(value)}
	t.published = p
	call := redisconn.Call{Keys: t.keys, Args: []string{t.me, strconv.FormatUint(p.version, 10), rest(t.request, *p)}}
	var at []int
	for i, c := range t.claims {
		if c != free {
			at = append(at, i)
		}
	}
	s.mu.Unlock()

	errs := make([]error, len(s.store.nodes)) // guarded by s.mu: replies may come after broadcast has returned
	done, open := s.broadcast(ctx, setnx.Publish, call, at, func(i int, r redisconn.Reply) {
		s.mu.Lock()
		errs[i] = r.Err
		s.mu.Unlock()
	})
	switch quorum := s.store.quorum; {
	case done >= quorum:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case done+open < quorum:
		return fmt.Errorf("%w: %d of %d servers have it", driver.ErrGone, done, len(s.store.nodes))
	}
	// A refusal says here that a majority did not take it. A server that did shows it, as the next
	// one repaired does.
	s.mu.Lock()
	why := s.store.reason(errs, len(at)-s.store.quorum)
	s.mu.Unlock()
	if why == nil {
		why = errNoAnswer
	}
	return fmt.Errorf("%d of %d servers have the value, and %d are needed (%w)", done, len(s.store.nodes), s.store.quorum, why)
}

var errNoAnswer = errors.New("the others have not answered in time")
