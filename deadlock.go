package hasp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
)

// A deadlock is certain only if the waiters say what they hold. The queues alone show which
// sessions wait for which; but a session is a process, in which one goroutine holds and another
// waits. So a Lock whose context was made from leases stores their ids with its entry, in the
// owner's JSON. Cycles through such ids are deadlocks, if all in them stay denied when all leave
// who can; cycles through sessions are suspected, and never acted upon. All who are stuck are read
// a second time: entries do not come back, so a cycle that is still there is real. Rejected: an
// ErrDeadlock on suspicion.

// Deadlock is a cycle of entries of which each waits for the next: none of them will ever
// get its lock.
type Deadlock struct {
	Waits []DeadlockEdge

	// Certain says that each owner has told the store what it holds while it waits, which
	// hasp does for a Lock whose context was made from a lease's. Otherwise the cycle
	// goes through sessions: the process that holds one lock waits for the other, perhaps
	// for the sake of different goroutines; then it need not be a deadlock.
	Certain bool
}

// DeadlockEdge is one entry of a Deadlock, and who is in its way.
type DeadlockEdge struct {
	Name   string
	Waiter Entry
	On     Entry // holds the name, or waits in front
}

func (d Deadlock) String() string {
	var parts []string
	for _, w := range d.Waits {
		parts = append(parts, fmt.Sprintf("%s waits for %q behind %s", w.Waiter.Owner, w.Name, w.On.Owner))
	}
	return strings.Join(parts, "; ")
}

// Deadlocks looks for cycles among all who wait on the store, each reported once, from
// what their queues say: who holds, who waits. The queues are read one after the other;
// what is found is read a second time, and reported if it is still there. Stores that
// cannot list their names, or do not show who waits, return ErrUnsupported.
//
// The cost is that of reading every queue of the store, some of them twice.
func (c *Client) Deadlocks(ctx context.Context) ([]Deadlock, error) {
	if !c.traits.FIFO {
		return nil, c.wrap(ctx, "look for deadlocks under prefix", "", errHidden)
	}
	var names []string
	for name, err := range c.Names(ctx, "") {
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return c.deadlocksAmong(ctx, names)
}

func (c *Client) deadlocksAmong(ctx context.Context, names []string) ([]Deadlock, error) {
	g, err := c.waitGraph(ctx, names, nil)
	if err != nil || len(g.cycles()) == 0 {
		return nil, err
	}
	// Names that were not read at the same moment can show a cycle that never was. One whose
	// entries are all still in each other's way is real: entries do not come back, and what the
	// first reading has not shown does not count. All who are stuck are read again, and not only
	// those in a cycle: of the holders of a semaphore each must be stuck, in whichever queue it
	// waits.
	seen, again := map[string]bool{}, []string{}
	for _, queue := range g.queues {
		for _, e := range queue {
			seen[e.ID] = true
		}
	}
	for n := range g.stuck[false] { // those of g.stuck[true] are among them
		again = append(again, n.name)
	}
	slices.Sort(again)
	if g, err = c.waitGraph(ctx, slices.Compact(again), seen); err != nil {
		return nil, err
	}
	return g.cycles(), nil
}

// waitGraph reads the queues of names. Unless seen is nil, other entries are left out.
func (c *Client) waitGraph(ctx context.Context, names []string, seen map[string]bool) (*waitGraph, error) {
	g := new(waitGraph)
	for _, name := range names {
		entries, err := c.backend.List(ctx, name, 0)
		if err != nil {
			return nil, c.wrap(ctx, "look for deadlocks at", name, err)
		}
		if seen != nil {
			entries = slices.DeleteFunc(entries, func(e driver.Entry) bool { return !seen[e.ID] })
		}
		g.add(entries, c.entry)
	}
	g.connect()
	return g, nil
}

// Holding names entries (by [Lease.ID]) that are held for the sake of the caller that waits here,
// although its context was not made from their leases: those of a parent process, say. They
// make deadlocks certain, as leases in the context do.
func Holding(ids ...string) LockOption {
	return func(c *lockConfig) {
		for _, id := range ids {
			if id == "" || len(id) > 64 {
				c.err = errors.Join(c.err, fmt.Errorf("%w: the id of an entry has 1 to 64 bytes, not %d", ErrInvalid, len(id)))
			}
		}
		c.holds = append(c.holds, ids...)
	}
}

// FailOnDeadlock has a Lock that waits for longer than d look for a deadlock that it is
// part of, again after each d. The youngest waiter of a certain one (see Deadlock) fails
// with ErrDeadlock, and the error tells the whole cycle; the others go on waiting, and
// get their locks as the youngest gives its own back. It looks only if its context holds
// locks: a caller that holds nothing blocks no other. All who may meet in a cycle should use
// it. Each look costs what [Client.Deadlocks] does.
//
// It sees what stands in the store's queues; a store that does not show who waits refuses
// the option with ErrUnsupported. A goroutine that waits for its turn behind
// another of the same client for the same name does not stand there yet.
func FailOnDeadlock(d time.Duration) LockOption {
	return func(c *lockConfig) { c.limit("FailOnDeadlock", &c.deadlock, d) }
}

// watchDeadlock looks again and again, and fails an entry's waiting if it is the youngest of a
// deadlock.
func (c *Client) watchDeadlock(ctx context.Context, id string, every time.Duration, fail context.CancelCauseFunc) {
	for sleep(ctx, every) {
		found, err := c.Deadlocks(ctx)
		if err != nil {
			continue // somebody else will tell of a store that does not answer
		}
		for _, d := range found {
			if d.Certain && d.youngest() == id {
				fail(fmt.Errorf("%w: %s", ErrDeadlock, d))
				return
			}
		}
	}
}

// youngest is the id of the entry that asked last. All see the same times, those of the
// waiters' own clocks: clocks that differ make another one the youngest, but the same one
// for all.
func (d Deadlock) youngest() string {
	w := slices.MaxFunc(d.Waits, func(a, b DeadlockEdge) int {
		if c := a.Waiter.Since.Compare(b.Waiter.Since); c != 0 {
			return c
		}
		return strings.Compare(a.Waiter.ID, b.Waiter.ID)
	})
	return w.Waiter.ID
}
