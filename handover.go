package hasp

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
)

// LocalHandOver lets a process that holds a mutex serve its own waiters before it gives the lock
// to other machines: at a release the lock goes to the goroutine of this client that has
// waited longest, without the store's knowing, up to n leases for one grant of the store
// and for no longer than d after it. It trades fairness between machines, within these
// bounds, for throughput within one: a hand-over costs microseconds instead of round
// trips. It is off by default, and concerns Lock of a Mutex and the writer's Lock of an
// RWMutex; a Try never waits and so is never handed a lock. A lease is handed on only to a
// waiter with the same [MinHold], [MaxHold] and [StallAfter], after MinHold, and not once it
// was downgraded; otherwise the waiter goes to the store.
//
// All leases of one grant have its fencing token and its id, and others are shown the
// owner and note of the first. A resource that refuses smaller tokens still refuses every
// earlier grant, but cannot tell the leases of one grant apart: among them, exclusion is
// this process's.
func LocalHandOver(n int, d time.Duration) LockOption {
	return func(c *lockConfig) {
		if n < 2 || d <= 0 {
			c.err = fmt.Errorf("%w: a local hand-over has at least 2 leases and takes some time, not %d and %s", ErrInvalidOption, n, d)
		}
		c.handOverLimit = handOverLimit{n, d}
	}
}

type handOverLimit struct {
	most int
	time time.Duration
}

// localHandOvers has the local hand-over of each name for which one of this client's goroutines
// holds, or is on its way to the store. Its mutex is taken before entry.mu.
type localHandOvers struct {
	mu    sync.Mutex
	names map[string]*localHandOver
}

// localHandOver is the local queue in front of the store's. Exactly one goroutine is in charge of
// the name at a time: the one that acquires from the store, then the holder. It ends its
// charge by handing the lease on (handOn) or by sending the next to the store (next).
type localHandOver struct {
	all  *localHandOvers
	name string

	// Guarded by all.mu.
	bound   handOverLimit // of the request that acquired the entry of the moment
	leases  int           // of that entry
	waiters []*handOverWaiter
	served  *handOverWaiter   // who got the lease of the moment; nil: it came from the store
	free    []*handOverWaiter // to be used again
}

// handOverWaiter gets a lease that was handed on, or nil: acquire from the store yourself.
type handOverWaiter struct {
	ctx    context.Context
	limits limits      // that its lease is to have
	turn   chan *Lease // has room for the one answer
}

// inHandOver acquires by way of the name's local hand-over.
func (c *Client) inHandOver(ctx context.Context, r *request) (*Lease, error) {
	b, w := c.handOvers.join(ctx, r)
	if w != nil {
		select {
		case l := <-w.turn:
			if l != nil {
				return l, nil
			}
		case <-ctx.Done():
			if !b.quit(w) {
				// The turn came at the same moment, and only we can pass it on.
				b.passOn(c, <-w.turn)
			}
			return nil, contextError(ctx)
		}
	}
	b.charge(r)
	l, err := c.inLocalQueue(ctx, r)
	if err != nil {
		b.next()
	}
	return l, err
}

// charge makes a request the one in charge.
func (b *localHandOver) charge(r *request) {
	b.all.mu.Lock()
	defer b.all.mu.Unlock()
	r.handOver, b.bound = b, r.handOverLimit
}

// join makes the caller the one in charge of the name (no waiter is returned), or queues
// it behind that one.
func (g *localHandOvers) join(ctx context.Context, r *request) (*localHandOver, *handOverWaiter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.names[r.name]
	if b == nil {
		if g.names == nil {
			g.names = map[string]*localHandOver{}
		}
		b = &localHandOver{all: g, name: r.name}
		g.names[r.name] = b
		return b, nil
	}
	w := b.newWaiterLocked()
	w.ctx, w.limits = ctx, r.limits
	b.waiters = append(b.waiters, w)
	return b, w
}

// newWaiterLocked returns one that was served, or another. They are kept here and not in a pool
// for all: a channel belongs to the bubble (testing/synctest) that it was made in.
func (b *localHandOver) newWaiterLocked() *handOverWaiter {
	n := len(b.free)
	if n == 0 {
		return &handOverWaiter{turn: make(chan *Lease, 1)}
	}
	w := b.free[n-1]
	b.free = b.free[:n-1]
	return w
}

// serveLocked gives a lease to the oldest waiter. The one before has received by now: the
// caller got its lease from it, if no lease has come from the store since (see next).
func (b *localHandOver) serveLocked(l *Lease) {
	if b.served != nil {
		b.served.ctx = nil
		b.free = append(b.free, b.served)
	}
	b.served = b.popLocked()
	b.served.turn <- l
}

// quit takes a waiter off the queue; false if its turn has come already.
func (b *localHandOver) quit(w *handOverWaiter) bool {
	b.all.mu.Lock()
	defer b.all.mu.Unlock()
	i := slices.Index(b.waiters, w)
	if i < 0 {
		return false
	}
	b.waiters = slices.Delete(b.waiters, i, i+1)
	return true
}

// passOn gives away the turn of a caller that has gone.
func (b *localHandOver) passOn(c *Client, l *Lease) {
	if l == nil {
		b.next()
		return
	}
	// Its end is told too, and who counts leases takes one off.
	c.event(Event{Kind: EventAcquired, Context: l.parent, Name: b.name, Token: l.Token()})
	c.releaseUnwanted(l) // hands it on, or leaves the store
}

// next ends the caller's charge: the oldest waiter goes to the store.
func (b *localHandOver) next() {
	b.all.mu.Lock()
	defer b.all.mu.Unlock()
	b.leases, b.served = 0, nil // who may not have received yet what was lost at once
	if len(b.waiters) == 0 {
		delete(b.all.names, b.name)
		return
	}
	b.popLocked().turn <- nil
}

func (b *localHandOver) popLocked() *handOverWaiter {
	w := b.waiters[0]
	b.waiters[0] = nil
	b.waiters = b.waiters[1:]
	return w
}

// handOn gives the entry of a lease that is being released to the oldest waiter, if there
// is one and the bounds allow it. The old lease ends before the new one exists.
func (b *localHandOver) handOn(l *Lease) bool {
	e := l.entry
	if !e.trusted() {
		return false
	}
	b.all.mu.Lock()
	defer b.all.mu.Unlock()
	n := time.Now()
	elapsed, _ := between(e.first.since, n)
	if len(b.waiters) == 0 || b.leases+1 >= b.bound.most || elapsed >= b.bound.time {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if l.err != nil || !e.onlyLocked(l) { // ended in between, or held twice
		return false
	}
	// The waiters want the whole capacity. What a Downgrade has given up may be others' by now.
	if e.certainUnitsLocked() != int64(e.capacity) || !e.servesLocked(b.waiters[0].limits) {
		return false
	}
	b.leases++
	l.endLocked(errReleased)
	next := new(Lease)
	e.newest = nil
	e.addLocked(next, b.waiters[0].ctx, n)
	e.startLimitLocked(next.since)
	b.serveLocked(next)
	return true
}

// servesLocked reports whether the entry's limits are those that the next holder wants, and let
// it have the lock now. MinHold keeps the lock from the next one, in this process too. A
// caller that has found the old holder over its limit meanwhile is about to end it, and
// would end the next holder instead.
func (e *entry) servesLocked(wanted limits) bool {
	if e.limit == nil {
		return wanted == limits{}
	}
	left, _ := e.leftLocked()
	return wanted == e.limit.limits && left > 0 && e.minLeftLocked() <= 0
}

// handsOver: only a lock that is taken whole has a next holder that needs no look at the
// rest of the queue.
func (r *request) handsOver() bool {
	return r.handOverLimit.most > 0 && !r.noWait && r.units == driver.Whole
}
