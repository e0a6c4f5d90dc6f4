package pglock

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/bootclock"
	"github.com/hasplock/hasp/driver/kit/connlock"
	"github.com/hasplock/hasp/driver/kit/takennames"
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

// Open makes a session, of which the server knows nothing: each lock has its connection. The server
// ends one that is silent after 15 s (settings), which is more than any is granted.
func (b *bound) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	began := bootclock.Now()
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	if err := b.made(ctx); err != nil {
		return nil, 0, err
	}
	s := connlock.New(b, o, began)
	if !b.opts.NoFence {
		go b.sweep(s.Done)
	}
	return s, s.Granted, nil
}

// made has the tables be there; without tokens none is needed.
func (b *bound) made(ctx context.Context) error {
	if b.opts.NoFence {
		return nil
	}
	return b.ensure(ctx)
}

// Check implements connlock.Store, as the other methods here and in advisory.go do.
func (b *bound) Check(r driver.Request) error {
	if r.Units != driver.Whole || r.Capacity != driver.Whole || len(r.Value) > 0 {
		return fmt.Errorf("%w: strategy=%s has mutexes only", driver.ErrUnsupported, b.opts.Strategy)
	}
	_, err := keyOf(b.opts.Key, r.Name)
	return err
}

func (b *bound) Take(ctx context.Context) (*pgxLink, error) {
	if err := b.made(ctx); err != nil {
		return nil, err
	}
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

func (b *bound) Keep(c *pgxLink) {
	b.mu.Lock()
	if !b.closed && len(b.idle) < b.opts.Connections && len(c.noted) < mostNoted && !c.broken() {
		b.idle = append(b.idle, c)
		b.mu.Unlock()
		return
	}
	b.mu.Unlock()
	c.close()
}

func (b *bound) Drop(c *pgxLink) { c.close() }

// Failed ends the idle connections as well: they are likely to be as broken as this, since a server
// that restarts breaks all. If the caller has ended the waiting, as each bounded one may, nothing is
// known to be wrong with them. Where the network has fallen silent meanwhile, the next lock finds
// that out.
func (b *bound) Failed(ctx context.Context, c *pgxLink, _ driver.Request, waited bool, err error) error {
	if noSchema(err) {
		b.forget() // dropped; the core asks again, and then they are made again
	}
	c.close()
	if ctx.Err() == nil || !waited {
		b.dropIdle()
	}
	return explain(ctx, err)
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

	_ connlock.Store[*pgxLink] = (*bound)(nil)
)
