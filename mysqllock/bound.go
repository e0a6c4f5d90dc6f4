package mysqllock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/driver"
)

// bound is the strategy getlock, whose locks are the server's own: each is bound to one connection
// and ends with it.
type bound struct {
	*store
	lock   *getLock
	notes  notes
	slots  func() chan struct{} // has room for the locks of a limited pool of the user's; nil for any other pool
	tidied atomic.Int64         // when we last asked whether a sweep is due, by the wall clock
}

func newBound(s *store) *bound {
	b := &bound{store: s, lock: &getLock{store: s}}
	b.slots = sync.OnceValue(func() chan struct{} { // when it is first used: a limit may be set after New
		most := s.kept.Stats().MaxOpenConnections
		if s.own || most <= 0 {
			return nil
		}
		return make(chan struct{}, max(1, most-1))
	})
	return b
}

// take waits for the right to a connection for a lock. If locks had all connections of a pool,
// those of their holders' own statements, and the records of holders, would wait for a release that
// waits for them.
func (b *bound) take(ctx context.Context) error {
	slots := b.slots()
	if slots == nil {
		return nil
	}
	select {
	case slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		// Without the context's error, beside which the core would leave out this one.
		return fmt.Errorf("locks use all connections but one of those that the pool lends (%d, SetMaxOpenConns), and with strategy=getlock each needs one", cap(slots)+1)
	}
}

func (b *bound) untake() {
	if slots := b.slots(); slots != nil {
		<-slots
	}
}

// Traits: mutexes. The server's queue is in order, but a waiter leaves it and enters it again every
// few seconds, so order is not promised.
//
// Forgets: a lock ends with its connection, and a client that has lost the answer to a release has
// lost the connection, too. That there is no lock any more proves nothing then: it may have ended
// long before, with a restart of the server.
func (b *bound) Traits() driver.Traits {
	return driver.Traits{Fencing: !b.opts.NoFence, Push: true, Forgets: true, Liveness: driver.ConnectionBound, MinTTL: minTTL}
}

// For how long a holder trusts its lock without an answer from the server, for any TTL. The most is
// shorter than the silence after which any reasonable server or firewall ends a connection, so that
// a holder which is cut off has stopped trusting when the lock goes to the next. The least spares a
// process that was stopped for a moment the loss of a lock that the server keeps for it.
const (
	leastGranted = 6 * time.Second
	mostGranted  = 12 * time.Second
)

// Open starts a session, of which the server has nothing: each lock has a separate connection.
func (b *bound) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	began := time.Now()
	if err := b.ready(ctx); err != nil {
		return nil, 0, err
	}
	if rand.N(sweepFirst) == 0 {
		b.tidy(ctx)
	}
	s := &boundSession{bound: b, opts: o, granted: min(max(o.TTL, leastGranted), mostGranted), tickets: map[*boundTicket]time.Time{}, renewed: began}
	s.done, s.finish = context.WithCancel(context.Background())
	return s, s.granted, nil
}

func (b *bound) ready(ctx context.Context) error {
	if err := b.fit(ctx); err != nil {
		return err
	}
	return b.lock.fit(ctx)
}

var _ driver.Migrator = (*bound)(nil)
