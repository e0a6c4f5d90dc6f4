package mysqllock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/bootclock"
	"github.com/hasplock/hasp/driver/kit/connlock"
	"github.com/hasplock/hasp/driver/kit/takennames"
)

// bound is the strategy getlock, whose locks are the server's own: each is bound to one connection
// and ends with it.
type bound struct {
	*store
	taken  takennames.Names
	notes  notes
	slots  func() chan struct{} // has room for the locks of a limited pool of the user's; nil for any other pool
	tidied atomic.Int64         // when we last asked whether a sweep is due, by the wall clock
}

func newBound(s *store) *bound {
	b := &bound{store: s}
	b.slots = sync.OnceValue(func() chan struct{} { // when it is first used: a limit may be set after New
		most := s.kept.Stats().MaxOpenConnections
		if s.own || most <= 0 {
			return nil
		}
		return make(chan struct{}, max(1, most-1))
	})
	return b
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

// Open starts a session, of which the server has nothing: each lock has a separate connection.
func (b *bound) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	began := bootclock.Now()
	if err := b.ready(ctx); err != nil {
		return nil, 0, err
	}
	if rand.N(sweepFirst) == 0 {
		b.tidy(ctx)
	}
	s := boundSession{connlock.New(b, o, began), b}
	return s, s.Granted, nil
}

// boundSession has the locks of a client.
type boundSession struct {
	*connlock.Session[*boundConn]
	bound *bound
}

// KeepAlive also has the tables swept now and then.
func (s boundSession) KeepAlive(ctx context.Context) (time.Duration, error) {
	granted, err := s.Session.KeepAlive(ctx)
	if err == nil {
		s.bound.tidy(ctx)
	}
	return granted, err
}

// ready refuses Galera, where each node has its own GET_LOCKs: two nodes, two holders.
func (b *bound) ready(ctx context.Context) error {
	err := b.fit(ctx)
	if err == nil && b.galera.Load() {
		err = fmt.Errorf("%w: this is a Galera cluster, whose nodes do not share GET_LOCK; use the strategy table", driver.ErrUnsupported)
	}
	return err
}

// Take implements connlock.Store, as the other methods here and in boundrequest.go do. It waits for
// the right to a connection for a lock. If locks had all connections of a pool, those of their
// holders' own statements, and the records of holders, would wait for a release that waits for them.
func (b *bound) Take(ctx context.Context) (*boundConn, error) {
	if err := b.fit(ctx); err != nil { // it asks nothing, unless the last request has found no tables
		return nil, err
	}
	if slots := b.slots(); slots != nil {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			// Without the context's error, beside which the core would leave out this one.
			return nil, fmt.Errorf("locks use all connections but one of those that the pool lends (%d, SetMaxOpenConns), and with strategy=getlock each needs one", cap(slots)+1)
		}
	}
	c, err := connOf(ctx, b.kept)
	if err != nil {
		b.untake()
		return nil, explain(ctx, err)
	}
	return &boundConn{Conn: c, socket: socketOf(c)}, nil
}

func (b *bound) untake() {
	if slots := b.slots(); slots != nil {
		<-slots
	}
}

func (b *bound) Keep(c *boundConn) {
	_ = c.Close() // to its pool
	b.untake()
}

func (b *bound) Drop(c *boundConn) {
	discard(c.Conn)
	b.untake()
}

// Failed also ends the statement of a waiter: the server would let it wait on.
func (b *bound) Failed(_ context.Context, c *boundConn, r driver.Request, _ bool, err error) error {
	b.Drop(c)
	b.lookAgain(err)
	b.endWaiting(c, r)
	return err
}

// Recorder notes the record first: it may be made though its answer is lost. Made twice, or late,
// it does no harm: a record counts that has the highest token.
func (b *bound) Recorder(c *boundConn, r driver.Request, g connlock.Grant) func(context.Context) error {
	if b.opts.NoFence || c.recorded {
		return nil
	}
	b.notes.add(c.number, r.Name)
	return func(ctx context.Context) error { return b.note(ctx, r, g.Token, c.number) }
}

// notes remembers which record a connection made last. If it gets the same lock again, that record
// would be taken for this holder's.
type notes struct {
	mu   sync.Mutex
	last map[uint64]string // names by the server's numbers of connections
}

// notesMost bounds what is remembered of connections that have ended.
const notesMost = 10000

func (n *notes) has(connection uint64, name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.last[connection] == name
}

func (n *notes) add(connection uint64, name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.last == nil || len(n.last) >= notesMost {
		n.last = map[uint64]string{}
	}
	n.last[connection] = name
}

var (
	_ driver.Migrator            = (*bound)(nil)
	_ connlock.Store[*boundConn] = (*bound)(nil)
)

// errGone tells of a lock that its connection has not any more.
func errGone(why string) error { return fmt.Errorf("%w: %s", driver.ErrGone, why) }

// errUnasked says that a connection is of no use: no answer that follows would be that of a request.
var errUnasked = errors.New("the server has sent what was not asked for, as it does before it ends a connection")
