package pglock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
)

// bound is what the strategies advisory and row have in common: a lock is held by a
// connection, and lost with it. Each lock and each waiter has one of its own. It comes out
// of a pool of users never, and is used for another lock only after the server has
// confirmed that it holds nothing.
type bound struct {
	*tables
	dialer    *dialer
	closePool func()
	kind      kind

	mu   sync.Mutex
	idle []*pgxLink // that hold nothing; at most opts.Connections
	shut bool
}

// kind is how a connection holds.
type kind interface {
	check(name string) error
	// take holds the lock when it returns without an error, or held is false: it is taken,
	// and this was not to wait. Else it calls taken as soon as it knows that it must; nil: it
	// must not.
	take(ctx context.Context, b *bound, c *pgxLink, r driver.Request, taken func()) (grant, error)
	give(ctx context.Context, b *bound, c *pgxLink, r driver.Request) (held bool, err error)
	holders(name string) (query string, args []any, err error)
	names() string
}

// grant is the answer of a taking.
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

var errNoRow = errors.New("the row of the lock was removed while it was made")

// quote writes a string constant.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func newBound(d *dialer, pool runner, closePool func(), o Options, k kind) *bound {
	return &bound{tables: newTables(pool, o), dialer: d, closePool: closePool, kind: k}
}

func (b *bound) String() string { return b.dialer.String() }

func (b *bound) Traits() driver.Traits {
	return driver.Traits{
		Push: true, Fencing: !b.opts.NoFence,
		Liveness: driver.ConnectionBound, MinTTL: minTTL,
	}
}

// For how long a holder may believe without an answer from the server. The most is shorter
// than the silence after which the server ends a connection (settings: 6 s and 3 probes of
// 3 s), so that a holder which is cut off has stopped believing when the server lets the
// next one in. The least spares a process that stood still for a moment the loss of a lock
// that the server keeps for it: its kernel answers the probes.
const (
	leastGranted = 6 * time.Second
	mostGranted  = 12 * time.Second
)

// Open makes a session, of which the server knows nothing: each lock has its connection.
func (b *bound) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	if _, plain := b.kind.(advisory); !plain || !b.opts.NoFence { // else no table is needed
		if err := b.ensure(ctx); err != nil {
			return nil, 0, err
		}
	}
	s := &boundSession{bound: b, opts: o, grips: map[*grip]bool{}}
	s.done, s.finish = context.WithCancel(context.Background())
	return s, s.granted(), nil
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
	if !b.shut && len(b.idle) < b.opts.Connections && !c.broken() {
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

// List returns who holds. Waiters are the server's secret: its lock table has their
// processes, but not their names.
func (b *bound) List(ctx context.Context, name string, limit int) ([]driver.Entry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var list []driver.Entry
	err := b.eachHolder(ctx, name, func(e driver.Entry, pid int64) {
		list = append(list, e)
	})
	return driver.First(list, limit), err
}

func (b *bound) eachHolder(ctx context.Context, name string, one func(e driver.Entry, pid int64)) error {
	query, args, err := b.kind.holders(name)
	if err != nil {
		return nil // no such lock can be held
	}
	err = b.scan(ctx, query, args, name, one)
	if a, advisory := b.kind.(advisory); advisory && noSchema(err) { // which it does without, if it draws no tokens
		if query, args, err = a.strangers(name); err == nil {
			err = b.scan(ctx, query, args, name, one)
		}
	}
	if noSchema(err) {
		return ctx.Err()
	}
	return explain(ctx, err)
}

func (b *bound) scan(ctx context.Context, query string, args []any, name string, one func(e driver.Entry, pid int64)) error {
	return b.pool.each(ctx, b.naming.sql(query), args, anyNumber, func(scan func(...any) error) error {
		var pid, seq, since int64
		e := driver.Entry{Request: driver.Request{Name: name, Units: driver.Whole, Capacity: driver.Whole}}
		err := scan(&pid, &seq, &e.ID, &e.Owner, &since)
		e.Seq, e.Session = uint64(seq), fmt.Sprintf("pid-%d", pid)
		if e.ID == "" {
			e.ID = e.Session // somebody else's
		} else {
			e.Since = time.UnixMicro(since)
		}
		one(e, pid)
		return err
	})
}

// Names lists what is held and has a name: locks of other programs are numbers.
func (b *bound) Names(ctx context.Context, prefix string, yield func(string) bool) error {
	return b.eachName(ctx, b.kind.names(), prefix, yield)
}

// Evict ends the connection of the holder, who learns of it at once. A role may do that to
// its own connections.
func (b *bound) Evict(ctx context.Context, name, id string) error {
	found := int64(0)
	err := b.eachHolder(ctx, name, func(e driver.Entry, pid int64) {
		if e.ID == id {
			found = pid
		}
	})
	if err != nil {
		return err
	}
	var ended bool
	if found != 0 {
		err = b.ask(ctx, "SELECT pg_terminate_backend($1::int)", []any{found}, &ended)
	}
	if err == nil && !ended {
		err = driver.ErrGone
	}
	return err
}

// Close ends the connections that hold nothing; those that held ended with their sessions.
func (b *bound) Close() error {
	b.mu.Lock()
	b.shut = true
	b.mu.Unlock()
	b.dropIdle()
	b.closePool()
	return nil
}

var (
	_ driver.Namer    = (*bound)(nil)
	_ driver.Evicter  = (*bound)(nil)
	_ driver.Migrator = (*bound)(nil)
)
