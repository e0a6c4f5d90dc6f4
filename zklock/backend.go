package zklock

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
)

// backend knows the servers. It makes a conn for each session. A request outside of a
// session uses any live conn, or one that is made for such requests.
type backend struct {
	opts    *Options
	servers []string
	parents parents

	opening chan struct{} // one slot: the right to open own

	mu     sync.Mutex
	conns  []*conn // of live sessions
	own    *conn   // for requests without a session; nil until needed
	closed bool
}

// ownTimeout is the session timeout asked for own, in which nothing lives: it bounds for how long
// an observer that has no session stays with a server that has fallen silent, two thirds of what is
// granted, and that is two ticks at least (4 s by default). A driver is not told of the client's
// TTL before the first session.
const ownTimeout = 3 * time.Second

// New returns a backend for a ZooKeeper ensemble: servers are host or host:port. It does no
// I/O: each session connects by itself.
//
// There is no way to hand it a zk.Conn: a session of hasp must be able to end alone, and
// what the library does not tell is read off the connection.
func New(servers []string, o *Options) (driver.Backend, error) {
	b, err := open(servers, o)
	if err != nil {
		return nil, err // not as a nil *backend
	}
	return b, nil
}

func open(servers []string, o *Options) (*backend, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	servers, err = driver.Hosts(strings.Join(servers, ","), defaultPort)
	if err != nil {
		return nil, err
	}
	return &backend{opts: o, servers: servers, opening: make(chan struct{}, 1)}, nil
}

func (b *backend) String() string {
	return "zookeeper://" + strings.Join(b.servers, ",") + b.opts.Root
}

func (b *backend) Traits() driver.Traits {
	queue := b.opts.Strategy == StrategyQueue
	return driver.Traits{
		FIFO: queue, Shared: queue, Counting: queue, Fencing: true, Values: true, Push: true,
		Liveness: driver.Leased,
	}
}

func (b *backend) add(c *conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns = append(b.conns, c)
}

func (b *backend) remove(c *conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns = slices.DeleteFunc(b.conns, func(o *conn) bool { return o == c })
}

// anyConn returns a live conn for a request that belongs to no session.
func (b *backend) anyConn(ctx context.Context) (*conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if c, err := b.liveConn(); c != nil || err != nil {
		return c, err
	}
	select {
	case b.opening <- struct{}{}:
		defer func() { <-b.opening }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if c, err := b.liveConn(); c != nil || err != nil {
		return c, err // another call has opened it meanwhile
	}
	c, err := openConn(ctx, b.opts, b.servers, ownTimeout, nil)
	if err != nil {
		return nil, explain("connect", err)
	}
	if err := c.checkFormat(ctx, b.opts, false); err != nil {
		c.abandon()
		return nil, err
	}
	b.mu.Lock()
	b.own = c
	closed := b.closed
	b.mu.Unlock()
	if closed {
		c.abandon()
		return nil, driver.ErrClosed
	}
	return c, nil
}

// onAnyConn makes a request that belongs to no session, by fn, on any live conn. A session
// that ends meanwhile is not the caller's: its end must not be returned as the answer, where
// ErrGone would mean that there is no such entry, and the request is made on another.
func onAnyConn[T any](ctx context.Context, b *backend, fn func(*conn) (T, error)) (T, error) {
	for {
		c, err := b.anyConn(ctx)
		if err != nil {
			var none T
			return none, err
		}
		v, err := fn(c)
		if err == nil || c.over() == nil {
			return v, err
		}
	}
}

func (b *backend) liveConn() (*conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, driver.ErrClosed
	}
	for _, c := range append(slices.Clone(b.conns), b.own) {
		if c != nil && c.over() == nil {
			return c, nil
		}
	}
	return nil, nil
}

func (b *backend) Close() error {
	b.mu.Lock()
	own := b.own
	b.own, b.closed = nil, true
	b.mu.Unlock()
	if own != nil {
		own.abandon()
	}
	return nil
}
