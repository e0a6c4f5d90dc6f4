package memstore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/driver"
)

// faults are what a Store does to its clients on request. Package hasptest documents them.
type faults struct {
	refused map[string]error // by name; "" for all
	delay   time.Duration
	cut     chan struct{} // nil, or closed by heal

	slow atomic.Bool // there is a delay or a cut: a look that costs nothing when there is none
}

// Refuse is hasptest.Store.Refuse.
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

// Delay is hasptest.Store.Delay.
func (s *Store) Delay(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults.delay = d
	s.faults.slow.Store(d > 0 || s.faults.cut != nil)
}

// Cut is hasptest.Store.Cut.
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

// Lose is hasptest.Store.Lose.
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

// Forget is hasptest.Store.Forget.
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
