package pglock

import (
	"context"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/takennames"
)

// bound is strategy=advisory: pg_advisory_lock, which a connection holds, and which is lost with
// it. Each lock and each waiter has a separate one. It never comes out of a pool of the user's, and
// is used for another lock only after the server has confirmed that it holds nothing.
type bound struct {
	*tables
	dialer    *dialer
	closePool func()

	taken takennames.Names

	mu     sync.Mutex
	idle   []*pgxLink // that hold nothing; at most opts.Connections
	closed bool
}

// grant is the answer of try and of wait.
type grant struct {
	held   bool
	token  uint64
	holder string
}

func newGrant(seq *int64, holder *string) grant {
	var g grant
	if seq != nil {
		g.held, g.token = true, uint64(*seq)
	}
	if holder != nil {
		g.holder = *holder
	}
	return g
}

func newBound(d *dialer, pool runner, closePool func(), o Options) *bound {
	return &bound{tables: newTables(pool, o), dialer: d, closePool: closePool}
}

func (b *bound) String() string { return b.dialer.String() }

func (b *bound) Traits() driver.Traits {
	return driver.Traits{
		Push: true, Fencing: !b.opts.NoFence,
		// With its connection a lock ends, and the cause is not always known: our Leave, or before
		// it an administrator, a restart, the network.
		Forgets:  true,
		Liveness: driver.ConnectionBound, MinTTL: minTTL,
	}
}

// For how long a holder trusts its lock without an answer from the server. The most is shorter than
// the silence after which the server ends a connection (15 s: settings), so that a holder which is
// cut off has stopped trusting when the server grants to the next. The least spares a process that
// was stopped for a moment the loss of a lock that the server keeps for it: its kernel answers the
// probes.
const (
	leastGranted = 6 * time.Second
	mostGranted  = 12 * time.Second
)

// Open makes a session, of which the server knows nothing: each lock has its connection.
func (b *bound) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	began := time.Now()
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	if err := b.made(ctx); err != nil {
		return nil, 0, err
	}
	s := &boundSession{bound: b, opts: o, renewed: began, tickets: map[*boundTicket]bool{}}
	s.done, s.finish = context.WithCancel(context.Background())
	if !b.opts.NoFence {
		go b.sweep(s.done)
	}
	return s, s.granted(), nil
}

// made has the tables be there; without tokens none is needed.
func (b *bound) made(ctx context.Context) error {
	if b.opts.NoFence {
		return nil
	}
	return b.ensure(ctx)
}

// link takes an idle connection, or makes one.
func (b *bound) link(ctx context.Context) (*pgxLink, error) {
	b.mu.Lock()
	if n := len(b.idle); n > 0 {
		c := b.idle[n-1]
		b.idle = b.idle[:n-1]
		b.mu.Unlock()
		return c, nil
	}
	b.mu.Unlock()
	c, err := b.dialer.link(ctx)
	if err != nil {
		return nil, explain(ctx, err)
	}
	return c.(*pgxLink), nil
}

// keep takes a connection back that holds nothing.
func (b *bound) keep(c *pgxLink) {
	b.mu.Lock()
	if !b.closed && len(b.idle) < b.opts.Connections && len(c.noted) < mostNoted && !c.broken() {
		b.idle = append(b.idle, c)
		b.mu.Unlock()
		return
	}
	b.mu.Unlock()
	c.close()
}

// dropIdle ends the idle connections.
func (b *bound) dropIdle() {
	b.mu.Lock()
	idle := b.idle
	b.idle = nil
	b.mu.Unlock()
	for _, c := range idle {
		c.close()
	}
}

// Close ends the connections that hold nothing; those that held ended with their sessions.
func (b *bound) Close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.dropIdle()
	b.closePool()
	return nil
}

var (
	_ driver.Namer    = (*bound)(nil)
	_ driver.Evicter  = (*bound)(nil)
	_ driver.Migrator = (*bound)(nil)
	_ driver.Granter  = (*bound)(nil)
)
