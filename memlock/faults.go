package memlock

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/driver"
)

// faults are what a Store does to its clients on request. They are for tests of programs
// that lock: within testing/synctest a lease runs out in no time at all.
type faults struct {
	refused map[string]error // by name; "" for all
	delay   time.Duration
	cut     chan struct{} // nil, or closed by heal

	slow atomic.Bool // there is a delay or a cut: a look that costs nothing when there is none
}

// Refuse has the store answer every request for an entry under name (all names if it is
// empty) with an error that wraps err and driver.ErrRefused, as a store does that is full or
// read-only: who asks first is told at once, who waits already waits on. nil ends it.
func (s *Store) Refuse(name string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		delete(s.faults.refused, name)
		return
	}
	if s.faults.refused == nil {
		s.faults.refused = map[string]error{}
	}
	s.faults.refused[name] = err
}

// Delay has every request take d longer before the store sees it: a slow network. 0 ends it.
func (s *Store) Delay(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults.delay = d
	s.faults.slow.Store(d > 0 || s.faults.cut != nil)
}

// Cut takes the store off the network: no request is answered until heal is called, and
// locks expire on both sides as their TTL runs out. The requests held back then go through.
// While it is cut, cutting it again changes nothing.
func (s *Store) Cut() (heal func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cut := s.faults.cut
	if cut == nil {
		cut = make(chan struct{})
		s.faults.cut = cut
		s.faults.slow.Store(true)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.faults.cut == cut {
			s.faults.cut = nil
			s.faults.slow.Store(s.faults.delay > 0)
			close(cut)
		}
	}
}

// Lose takes a lock from all who hold it, as an operator would, and returns how many did.
// They are told at once, with the reason Denied; the next in the queue holds.
func (s *Store) Lose(name string) int {
	s.mu.Lock()
	var lost []*entry
	if q := s.queues[name]; q != nil {
		lost = slices.Clone(q.entries[:q.holding])
		for _, e := range lost {
			s.remove(e)
		}
	}
	s.mu.Unlock()
	for _, e := range lost {
		e.evicted()
	}
	return len(lost)
}

// Forget ends every session with all its entries, holders and waiters, as a store does that
// was restarted without its memory. Clients are told at once, with the reason SessionGone.
// Tokens go on growing.
func (s *Store) Forget() {
	s.mu.Lock()
	sessions := slices.Collect(maps.Keys(s.open))
	clear(s.queues) // all at once: no waiter is granted what another has just lost
	for _, open := range sessions {
		open.endLocked()
	}
	s.mu.Unlock()
	for _, open := range sessions {
		open.tellExpired()
	}
}

// arrive delays or refuses a request before the store sees it.
func (s *Store) arrive(ctx context.Context) error {
	for s.faults.slow.Load() {
		s.mu.Lock()
		delay, cut := s.faults.delay, s.faults.cut
		s.mu.Unlock()
		if delay > 0 {
			t := time.NewTimer(delay)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return ctx.Err()
			}
		}
		if cut == nil {
			break
		}
		select {
		case <-cut:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return ctx.Err()
}

// refusal is the error for a request under name, if it is refused; with s.mu.
func (s *Store) refusal(name string) error {
	for _, n := range []string{name, ""} {
		if err := s.faults.refused[n]; err != nil {
			return fmt.Errorf("%w: %w", driver.ErrRefused, err)
		}
	}
	return nil
}
