package programs

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
)

// conn stands between the core of one client and its driver, and disturbs the calls as a network
// would. The driver and its store are real.
type conn struct {
	driver.Backend
	network Network // nil: there is no network that could fail
	forgets bool    // the run can make the store forget

	mu     sync.Mutex
	broken chan struct{} // non-nil while nothing passes, closed when calls pass again
	dead   bool
	deaf   bool
	short  time.Duration // the first wait of the driver ends after it, and is repeated; 0: when the core ends it
	plans  []plan        // for the calls to come, one each
	prefix string        // of all ids that this client makes

	underWay sync.WaitGroup // requests that are late
}

func (s *Store) connect(t testing.TB) *conn {
	c := &conn{forgets: s.Forget != nil}
	if s.Proxied != nil {
		c.Backend, c.network = s.Proxied(t)
	} else {
		c.Backend = s.Open(t)
	}
	return c
}

func (c *conn) Traits() driver.Traits {
	t := c.Backend.Traits()
	t.Forgets = t.Forgets || c.forgets
	return t
}

// spoil makes the next n calls follow p.
func (c *conn) spoil(n int64, p plan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range n {
		c.plans = append(c.plans, p)
	}
}

// spoilNext makes the next call follow p, before the plans for other calls.
func (c *conn) spoilNext(p plan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.plans = slices.Insert(c.plans, 0, p)
}

// silence lets nothing pass until mend: in the network if there is one, else here.
func (c *conn) silence() {
	if c.network != nil {
		c.network.Partition()
		return
	}
	c.cut(false)
}

// slow delays answers a little, where there is a network.
func (c *conn) slow(by time.Duration) {
	if c.network != nil && by > 0 {
		c.network.Slow(by)
	}
}

// kill lets nothing pass ever again: including the driver's own calls.
func (c *conn) kill() {
	c.cut(true)
	if c.network != nil {
		c.network.Partition()
	}
}

// cut lets nothing pass until mend, or never again.
func (c *conn) cut(forever bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dead = c.dead || forever
	if c.broken == nil {
		c.broken = make(chan struct{})
	}
}

// heal ends every fault that has an end.
func (c *conn) heal() {
	c.mu.Lock()
	c.plans, c.deaf, c.short = nil, false, 0
	c.mu.Unlock()
	c.mend()
}

// revive ends even Kill.
func (c *conn) revive() {
	c.mu.Lock()
	c.dead = false
	c.mu.Unlock()
	c.mend()
}

// mend lets everything pass again.
func (c *conn) mend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return
	}
	if c.network != nil {
		c.network.Heal()
	}
	if c.broken != nil {
		close(c.broken)
		c.broken = nil
	}
}

func (c *conn) hears() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.broken == nil && !c.deaf
}

func (c *conn) setDeaf(deaf bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deaf = deaf
}

// shorten makes the waits that begin from now on short; 0: no longer.
func (c *conn) shorten(to time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.short = to
}

func (c *conn) shortWaits() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.short
}

// entered reports whether an id is an ID of this client.
func (c *conn) entered(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.prefix != "" && strings.HasPrefix(id, c.prefix)
}

func (c *conn) isDead() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dead
}

// end ends the network, when the client is closed: its last requests may pass. It is not part of the
// driver's Close, for which a client waits so and so long: a network on a busy machine, with
// connections that hang, may take longer.
func (c *conn) end() {
	c.underWay.Wait()
	if c.network != nil {
		c.network.Close()
	}
}

func (c *conn) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	gone := o.Gone
	o.Gone = func(id string, err error) {
		if c.hears() { // else the message is lost
			gone(id, err)
		}
	}
	var s driver.Session
	granted, err := through(ctx, c, false, func(ctx context.Context) (granted time.Duration, err error) {
		opened, granted, err := c.Backend.Open(ctx, o)
		if err == nil {
			s = opened
		}
		return granted, err
	})
	if err != nil {
		if s != nil { // only the answer is lost; this session has no user
			ctx, cancel := detached(ctx)
			defer cancel()
			_ = s.Close(ctx)
		}
		return nil, 0, err
	}
	return &connSession{s, c}, granted, nil
}

func (c *conn) List(ctx context.Context, name string, limit int) ([]driver.Entry, error) {
	return through(ctx, c, false, func(ctx context.Context) ([]driver.Entry, error) {
		return c.Backend.List(ctx, name, limit)
	})
}

// connected is c with those optional abilities of the driver's backend that a client uses by
// itself. An operator uses its own on connections without faults.
func connected(c *conn) driver.Backend {
	if w, ok := c.Backend.(driver.Watcher); ok {
		return struct {
			*conn
			driver.Watcher
		}{c, w}
	}
	return c
}

type connSession struct {
	driver.Session
	c *conn
}

func (s *connSession) KeepAlive(ctx context.Context) (time.Duration, error) {
	return through(ctx, s.c, true, s.Session.KeepAlive)
}

func (s *connSession) Close(ctx context.Context) error {
	_, err := through(ctx, s.c, true, func(ctx context.Context) (struct{}, error) { return struct{}{}, s.Session.Close(ctx) })
	return err
}
