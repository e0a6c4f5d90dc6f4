package drivertest

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp"
)

var retentionTests = []test{
	{name: "Sweep", needs: needsRetention, run: testSweep},
}

func needsRetention(e *env) string {
	if e.h.Retention == 0 {
		return "the store keeps free names for longer than a test runs (Harness.Retention is 0)"
	}
	return ""
}

// swept is a name to which clients come back about when the store may delete its record.
type swept struct {
	name    string
	holders atomic.Int32

	mu   sync.Mutex
	last uint64 // token
}

// S1, S2: the store deletes the record of a free name while clients come back to the name. What is
// held is not deleted with it, also by a request that arrives late, and tokens do not go back.
func testSweep(e *env) {
	const names, clients, rounds = 8, 2, 6
	var all sync.WaitGroup
	for range names {
		s := &swept{name: e.name()}
		for range clients {
			c := e.client()
			all.Go(func() {
				for range rounds {
					time.Sleep(e.h.Retention/2 + rand.N(2*e.h.Retention))
					if !e.comeBack(c, s) {
						return
					}
				}
			})
		}
	}
	e.must(e.client().Mutex(e.name()).Lock(e.ctx())) // its renewals sweep
	all.Wait()
}

// comeBack takes the name for as long as a late request may need, unless another has it.
func (e *env) comeBack(c *client, s *swept) bool {
	l, err := c.Mutex(s.name).TryLock(e.ctx())
	if errors.Is(err, hasp.ErrBusy) {
		return true
	}
	if err != nil {
		e.slowIfUnknown(err)
		e.Errorf("%q: %v", s.name, err)
		return false
	}
	s.mu.Lock()
	if e.traits.Fencing && l.Token() <= s.last {
		e.violated("%q: token %d after %d", s.name, l.Token(), s.last)
	}
	s.last = max(s.last, l.Token())
	s.mu.Unlock()
	if n := s.holders.Add(1); n != 1 {
		e.violated("%q: %d hold it", s.name, n)
	}
	time.Sleep(rand.N(e.h.Retention / 2))
	s.holders.Add(-1)
	if err := l.Release(e.ctx()); err != nil {
		e.Errorf("%q was held, and nothing disturbed it: %v", s.name, err)
		return false
	}
	return true
}
