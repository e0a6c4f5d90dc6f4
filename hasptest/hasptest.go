// Package hasptest is for tests of programs that lock: a store in memory that loses a lock,
// refuses, is slow or silent when the test says so.
//
//	func TestStopsAtALoss(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			store := hasptest.New()
//			done := make(chan error)
//			client := store.Client(t)
//			go func() { done <- program(t.Context(), client) }()
//			synctest.Wait() // until it works
//			store.Lose("orders/42")
//			if err := <-done; !errors.Is(err, hasp.ErrLost) {
//				t.Error(err)
//			}
//		})
//	}
//
// In a bubble of testing/synctest, TTLs and outages of hours pass at once, and synctest.Wait says
// when the program has done all that it can do. It is not needed otherwise. The examples have one
// test for each fault. What works under these faults works the same on every store, but for what
// docs/GUARANTEES.md tells of each.
//
//	to test                                        use
//	a lock that is lost, an eviction               Lose, or Client.Evict
//	an outage: a loss by time, a release that is   Cut
//	  not confirmed, a lock that cannot be had
//	a store that has forgotten everything          Forget
//	a full disk, a missing permission              Refuse
//	a slow network                                 Delay
//	a lock that is taken                           another Client of the store
package hasptest

import (
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/memstore"
)

// Store is a store in memory, with faults on demand. Clients of its backends contend like clients
// of one server. Safe for use by many goroutines.
type Store struct{ mem *memstore.Store }

// New returns an empty store without faults.
func New() *Store { return &Store{memstore.New("mem://")} }

// Backend returns a new connection to the store, for hasp.New.
func (s *Store) Backend() driver.Backend { return s.mem.Backend() }

// Client returns a new client of the store, which is closed when the test ends. In a bubble of
// testing/synctest, call it inside the bubble.
func (s *Store) Client(t testing.TB, opts ...hasp.Option) *hasp.Client {
	t.Helper()
	c, err := hasp.New(s.mem.Backend(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // of memory: it has no error
	return c
}

// Lose takes a lock from all who hold it, and returns how many did. They are told at once, with
// [hasp.ReasonDenied], as when an operator has evicted them; the next in the queue holds. For one
// holder of several, and for the name and reason of an operator, there is [hasp.Client.Evict], by
// any client of the store.
func (s *Store) Lose(name string) int { return s.mem.Lose(name) }

// Forget ends every session with all its entries, holders and waiters, as a store does that was
// restarted without its memory. Clients are told at once, with [hasp.ReasonSessionGone]; waiters
// queue up again. Tokens go on growing.
func (s *Store) Forget() { s.mem.Forget() }

// Refuse has the store answer every request for a new entry under name (all names if it is
// empty) with an error that wraps err and [hasp.ErrRefused], as a store does that is full or
// read-only: who asks first is told at once, who waits already waits on. nil ends it.
func (s *Store) Refuse(name string, err error) { s.mem.Refuse(name, err) }

// Delay has every request take d longer before the store sees it: a slow network. 0 ends it.
func (s *Store) Delay(d time.Duration) { s.mem.Delay(d) }

// Cut takes the store off the network: no request is answered until heal is called, and locks
// expire on both sides as their TTL runs out, with [hasp.ReasonExpired]. The requests held back
// then go through. While it is cut, cutting it again changes nothing.
func (s *Store) Cut() (heal func()) { return s.mem.Cut() }
