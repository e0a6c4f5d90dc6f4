package mysqllock

import (
	"context"
	"math/rand/v2"
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
	tidied atomic.Int64 // when we last asked whether a sweep is due, by the wall clock
}

func newBound(s *store) *bound { return &bound{store: s, lock: &getLock{store: s}} }

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
