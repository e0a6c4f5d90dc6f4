package simulation

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/redislock"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// client is one of hasp's, whole, on a connection of the simulation.
type client struct {
	*hasp.Client
	world *world
	n     int
	ttl   time.Duration

	noInfo  bool
	db      int
	at      int            // the server that its address leads to
	slots   map[uint16]int // in a cluster: the servers of slots, as it was told last
	fates   []fate         // of the next requests
	cut     bool           // nothing passes
	deaf    bool           // no message passes
	crashed bool
	closed  bool

	requests int
	asked    time.Time // when it sent its last request
	atOnce   int       // how many it has sent at that moment
}

func (c *client) String() string { return fmt.Sprint("client ", c.n) }

// leads is the server to which it sends what is about a slot. The caller has the world's lock.
func (c *client) leads(slot uint16) int {
	if c.world.cluster == 0 {
		return c.at
	}
	if _, known := c.slots[slot]; !known {
		c.slots[slot] = c.world.owner(slot)
	}
	return c.slots[slot]
}

// nextFate takes the fate of the next request.
func (c *client) nextFate() fate {
	c.world.mu.Lock()
	defer c.world.mu.Unlock()
	f := passes
	if len(c.fates) > 0 {
		f, c.fates = c.fates[0], c.fates[1:]
	}
	if c.cut && f == passes {
		f = lost
	}
	return f
}

func (w *world) newClient(n int, ttl time.Duration, at int) (*client, error) {
	c := &client{world: w, n: n, ttl: ttl, at: at, slots: map[uint16]int{}}
	b, err := redisconn.NewBackend(&conn{c, w}, &redislock.Options{Strategy: w.strategy, Replicas: w.wait})
	if err != nil {
		return nil, err
	}
	if c.Client, err = hasp.New(b, hasp.WithTTL(ttl)); err != nil {
		return nil, err
	}
	return c, nil
}

// patience is how long a Lock of a schedule waits.
const patience = 3 * time.Minute

// acquire asks for a lock, and records what it was told.
func (w *world) acquire(c *client, name string, try, shared bool) error {
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	a := w.began(c, name, shared)
	l, err := w.call(ctx, a, try)
	if err == nil {
		w.granted(a, l)
		return nil
	}
	var busy *hasp.BusyError
	if errors.As(err, &busy) && busy.Quarantine > 0 {
		w.refused(a, busy.Quarantine)
	}
	return err
}

// call chooses the primitive: a name that begins with r is a lock of readers and writers, with s a
// semaphore of two; e is an election for who waits, and the others are mutexes.
func (w *world) call(ctx context.Context, a *acquisition, try bool) (*hasp.Lease, error) {
	var lock, attempt func(context.Context) (*hasp.Lease, error)
	switch {
	case a.name[0] == 'r' && a.shared:
		m := a.client.RWMutex(a.name)
		lock, attempt = m.RLock, m.TryRLock
	case a.name[0] == 'r':
		m := a.client.RWMutex(a.name)
		lock, attempt = m.Lock, m.TryLock
	case a.name[0] == 's':
		s := a.client.Semaphore(a.name, 2)
		lock = func(ctx context.Context) (*hasp.Lease, error) { return s.Acquire(ctx, 1) }
		attempt = func(ctx context.Context) (*hasp.Lease, error) { return s.TryAcquire(ctx, 1) }
	case a.name == "e" && !try:
		lock = func(ctx context.Context) (l *hasp.Lease, err error) {
			if a.term, err = a.client.Election(a.name).Campaign(ctx, []byte("0")); err == nil {
				l = a.term.Lease
			}
			return l, err
		}
	default:
		m := a.client.Mutex(a.name)
		lock, attempt = m.Lock, m.TryLock
	}
	if try {
		return attempt(ctx)
	}
	return lock(ctx)
}
