package mysqllock

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/driver"
)

// bound is a strategy whose locks are the server's own: each is bound to one connection and
// ends with it.
type bound struct {
	*store
	scheme scheme
	fenced *getLock     // the scheme, if it is GET_LOCK with tokens; see boundfence.go
	notes  notes        // of fenced
	tidied atomic.Int64 // when we last asked whether a sweep is due, by the wall clock
}

// scheme has the operations in which getlock and row differ.
type scheme interface {
	// acquire asks for the lock on a connection, for at most so many seconds (0: not waiting). The context
	// is that of the whole request, also of what is still to come of its answer.
	acquire(ctx context.Context, c *sql.Conn, r driver.Request, seconds int) (grant, error)

	// release gives the lock up and reports whether it was held.
	release(ctx context.Context, c *sql.Conn, name string) (there bool, err error)

	// used reports whether the lock is held, and if the store tells, on which connection.
	used(ctx context.Context, name string) (is bool, connection uint64, err error)

	// waits is a text that a request has, as the server shows it, while it waits for the lock.
	waits(name string) string

	// check refuses names and servers that this scheme cannot serve.
	check(name string) error
	fit(ctx context.Context) error
}

func newBound(s *store) *bound {
	if s.opts.Strategy == StrategyRow {
		return &bound{store: s, scheme: &rows{s}}
	}
	g := &getLock{store: s}
	if s.opts.NoFence {
		return &bound{store: s, scheme: g}
	}
	return &bound{store: s, scheme: g, fenced: g}
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
	return b.scheme.fit(ctx)
}

var _ driver.Migrator = (*bound)(nil)
