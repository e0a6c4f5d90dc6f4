package hasp

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Queue has the entries of a name at one moment.
type Queue struct {
	Name    string
	Holders []Entry // oldest first
	Waiters []Entry // in the order in which they will be served

	// Quarantine is for how long the store grants nothing, because it may have forgotten locks:
	// on Redis after a restart. It is asked for where there is no holder. The first waiter does not
	// hold until it is over.
	Quarantine time.Duration
}

// Entry is one place in a Queue.
type Entry struct {
	ID       string
	Units    int64
	Capacity int64
	Token    uint64 // where Traits().Fencing: of the grant, or of the one to come
	Owner    Owner
	Since    time.Time // when it asked, by its owner's clock; zero if the store does not know
	Value    []byte
	Session  string

	// Holds are the ids of entries, of any name, that this one's owner holds while it
	// waits: those whose leases its context was made from. They make deadlocks certain (see
	// Deadlock).
	Holds []string

	// AnyOf says that it was made by [LockAny] or a [Pool]: as a waiter it may stand in other
	// queues too, and leaves when it is granted another lock.
	AnyOf bool

	// LooksOver is since when the holder's own stamp says that its time is over, on a store without
	// a clock (kube, s3); zero where it does not. It may hold still: clocks differ, and who waits
	// takes the lock only after it has seen it unchanged for its TTL.
	LooksOver time.Time

	// Expires is when the store removes the entry if it is not renewed, by this client's clock;
	// zero where nothing expires, and where the store does not say it with a queue (see
	// docs/DRIVERS.md). Each renewal moves it. It is not the end of the holder's trust, which is
	// earlier.
	Expires time.Time
}

// Whole reports whether the entry takes the lock for itself: a mutex or a writer.
func (e Entry) Whole() bool { return e.Units == e.Capacity && e.Capacity == driver.Whole }

// Inspect reads who holds a lock and who waits. It is a view of one moment, for people
// and programs that report: never base exclusion on it.
func (c *Client) Inspect(ctx context.Context, name string) (Queue, error) {
	q, err := c.inspect(ctx, name, 0)
	if err == nil && len(q.Holders) == 0 && q.Quarantine == 0 {
		q.Quarantine, err = c.quarantine(ctx, name)
	}
	return q, err
}

// quarantine is for how long the store grants nothing on the name.
func (c *Client) quarantine(ctx context.Context, name string) (time.Duration, error) {
	b, ok := c.backend.(driver.Quarantiner)
	if !ok {
		return 0, nil
	}
	left, err := b.Quarantine(ctx, name)
	if err != nil {
		return 0, c.wrap(ctx, "inspect", name, err)
	}
	return left, nil
}

// inspect reads the first entries of a queue: at most limit, or all if that is 0.
func (c *Client) inspect(ctx context.Context, name string, limit int) (Queue, error) {
	q := Queue{Name: name}
	if ctx == nil {
		return q, c.wrap(ctx, "inspect", name, errNilContext)
	}
	if err := driver.CheckName(name); err != nil {
		return q, c.wrap(ctx, "inspect", name, err)
	}
	if c.isClosed() {
		return q, c.wrap(ctx, "inspect", name, ErrClosed)
	}
	entries, err := c.backend.List(ctx, name, limit)
	if err != nil {
		return q, c.wrap(ctx, "inspect", name, err)
	}
	asked := false
	for i, e := range entries {
		v := c.entry(e)
		held, _ := driver.Decide(entries[:i], e.Request)
		// A waiter that would hold by the rule is one that the store is about to grant, or that it
		// grants only when it can no longer have forgotten another grant: the first of a queue does
		// not hold then. Outside a quarantine this asks nothing more.
		if held && e.Waits && !asked {
			asked = true
			if q.Quarantine, err = c.quarantine(ctx, name); err != nil {
				return q, err
			}
		}
		if held && (!e.Waits || q.Quarantine == 0) {
			q.Holders = append(q.Holders, v)
		} else {
			q.Waiters = append(q.Waiters, v)
		}
	}
	return q, nil
}

// entry is a driver's entry as users see it.
func (c *Client) entry(e driver.Entry) Entry {
	owner := decodeOwner(e.Owner)
	v := Entry{
		ID: e.ID, Units: e.Units, Capacity: e.Capacity, Owner: owner.Owner, Holds: owner.Holds, AnyOf: owner.AnyOf,
		Since: e.Since, Value: e.Value, Session: e.Session, LooksOver: e.LooksOver,
	}
	if c.traits.Fencing {
		v.Token = e.Seq
	}
	if e.Left > 0 {
		v.Expires = time.Now().Add(e.Left)
	}
	return v
}

// Names yields the names that are held or waited for and start with prefix, in no
// promised order. An error ends the sequence. Stores that cannot list their names yield
// ErrUnsupported.
func (c *Client) Names(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		n, ok := c.backend.(driver.Namer)
		var err error
		stopped := false
		switch {
		case ctx == nil:
			err = errNilContext
		case c.isClosed():
			err = ErrClosed
		case !ok:
			err = fmt.Errorf("%w: it cannot list names", ErrUnsupported)
		default:
			err = n.Names(ctx, prefix, func(name string) bool {
				stopped = !yield(name, nil)
				return !stopped
			})
		}
		if err != nil && !stopped {
			yield("", c.wrap(ctx, "list names with prefix", prefix, err))
		}
	}
}

func (c *Client) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// pollEvery is how often a name is read on a store that cannot be watched.
const pollEvery = time.Second

// follow signals whenever the name may have changed since the last signal was taken, until
// ctx ends. It never waits for its reader: one pending signal says all. A watch that breaks
// is set up again and, standing, signals; the reader of the name then sees what is wrong.
func (c *Client) follow(ctx context.Context, name string) <-chan struct{} {
	signal := make(chan struct{}, 1)
	ring := func() {
		select {
		case signal <- struct{}{}:
		default:
		}
	}
	w, ok := c.backend.(driver.Watcher)
	go func() {
		var b backoff
		for ctx.Err() == nil {
			if !ok {
				sleep(ctx, pollEvery)
				ring()
				continue
			}
			began := time.Now()
			_ = w.Watch(ctx, name, ring)
			ring() // read at least once for each broken watch: the error shows there
			if time.Since(began) > backoffMost {
				b = backoff{} // it had been standing
			}
			b.sleep(ctx)
		}
	}()
	return signal
}
