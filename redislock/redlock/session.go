package redlock

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/driver"
)

// session is a client's locks. The servers have no state of a session: each key has its expiry, and
// the session listens to one channel.
//
// # Trust
//
// The core trusts an entry until s + T - 1 % - margin, s being the moment before the last
// successful KeepAlive (or Open) was sent. Of the published algorithm's validity time, T - elapsed
// - drift, the core thus subtracts the elapsed time, by counting from s, and the drift: 1 %
// and at least 50 ms, where the paper has 1 % and 2 ms. This package must ensure the rest, and
// subtracts nothing again:
//
//	A: At any time, each held ticket's key is on a majority of servers, on each for at
//	   least T from some moment after s.
//
// Taking gives a key T from its arrival, which is after its sending, and extending, too. A
// KeepAlive succeeds only if, for every ticket held when it began, a majority has extended within
// that very call. A ticket that becomes held must also be covered by the KeepAlives that began
// before and may still succeed, although they do not know of it. Therefore KeepAlives are counted
// when they begin, and a ticket is marked held only if none has begun since the first of its
// requests was sent; otherwise the round is made again, which extends what it finds to be ours.
// Both happen under mu. So every KeepAlive either began before the keys were sent (A holds: they
// last longer than its s + T) or sees the ticket.
//
// This reads no clock, on purpose: a process that is stopped between any two of
// these steps finds its count unchanged and its keys as old as its trust, or the count
// changed.
type session struct {
	store       *store
	opts        driver.SessionOptions
	nodeTimeout time.Duration
	id          string

	done   context.Context // ended when nothing is left to do for the session
	finish context.CancelFunc
	open   context.Context // ended by Close
	close  context.CancelFunc

	settled chan struct{} // a signal that there are fewer pending releases; one signal counts for all

	mu       sync.Mutex
	closed   bool
	renewals uint64             // KeepAlives that have begun
	tickets  map[string]*ticket // those that hold, try or wait, by ID
	pending  []pendingReleases  // by server
}

var errSessionClosed = fmt.Errorf("%w: the session is closed", driver.ErrGone)

// Ticket prepares an entry.
func (s *session) Ticket(r driver.Request) driver.Ticket {
	return &ticket{
		session: s, request: r,
		claims: make([]claim, len(s.store.nodes)), waiterAt: make([]bool, len(s.store.nodes)),
	}
}

// requestBound is the longest time that a request may be under way. The attempt
// has been decided long before; this bound is for its clean-up.
func (s *session) requestBound() time.Duration { return min(s.opts.TTL, 5*time.Second) }

// requestGroup is requests that are under way together. Its context is not that of the call that
// makes them: a sent request must be followed to its end, also after the call has returned.
type requestGroup struct {
	ctx    context.Context
	cancel context.CancelFunc
	under  atomic.Int32
}

// newRequestGroup begins one; its caller calls done when all its requests are made.
func newRequestGroup(until context.Context, bound time.Duration) *requestGroup {
	f := &requestGroup{}
	f.ctx, f.cancel = context.WithTimeout(until, bound)
	f.under.Store(1)
	return f
}

func (s *session) requestGroup() *requestGroup { return newRequestGroup(s.done, s.requestBound()) }

func (f *requestGroup) do(request func(context.Context)) {
	f.under.Add(1)
	go func() {
		defer f.done()
		request(f.ctx)
	}()
}

func (f *requestGroup) done() {
	if f.under.Add(-1) == 0 {
		f.cancel()
	}
}

// Close releases everything. It returns nil when each lock is free on a majority and the others
// have had their time to answer: a key that stays on a minority blocks no client, and expires.
// Called again, it repeats only what has failed.
func (s *session) Close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		s.close()
		for _, t := range s.tickets {
			t.dropLocked(true)
		}
	}
	s.mu.Unlock()
	if err := s.waitSettled(ctx); err != nil {
		return err
	}
	s.finish()
	return nil
}
