package programs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// finish ends the faults, releases everything, and checks that every waiter is served and nothing
// is left.
func (r *run) finish() {
	r.mu.Lock()
	undo := r.undo
	r.undo = nil
	r.mu.Unlock()
	for _, u := range undo {
		u()
	}
	for _, m := range r.machines {
		m.conn.heal()
	}
	r.mu.Lock()
	for _, a := range r.pending {
		if a.machine.conn.isDead() {
			a.cancel() // no acquisition waits there any more
		}
	}
	r.mu.Unlock()
	for _, m := range r.machines {
		// A dead process loses its connection, which this one still has; and a driver may keep its
		// sessions alive by itself, which only a network can prevent.
		if r.traits.Liveness != driver.Leased || !r.fake && m.conn.network == nil {
			m.conn.revive()
		}
	}
	if !r.fake {
		r.checkAllWoken()
	}
	r.checkLosses()
	r.serveAll()
	r.cancel()
	r.jobs.Wait()
	for _, m := range r.machines {
		if err := m.client.Close(); err != nil {
			r.fail("close", "close of a client: %v", err)
		}
	}
	for _, m := range r.machines {
		m.conn.end()
	}
	r.checkEmpty()
}

// serveAll releases held leases until no acquisition waits any more.
func (r *run) serveAll() {
	r.mu.Lock()
	bound := time.Duration(len(r.pending)+3) * r.bound()
	r.mu.Unlock()
	start := time.Now()
	moved, last := start, 0
	for ; ; r.rest() {
		r.mu.Lock()
		held := slices.DeleteFunc(slices.Clone(r.holds), func(h *hold) bool { return h.over })
		waiting, now := len(r.pending), len(r.pending)+r.moment
		if now != last || len(held) > 0 {
			moved, last = time.Now(), now
		}
		still := time.Since(moved)
		patience := r.patienceLocked()
		r.mu.Unlock()
		for _, h := range held {
			r.release(h)
		}
		if waiting == 0 && len(held) == 0 {
			return
		}
		if patience < longest && still > patience/10 && !r.answers() {
			moved = time.Now()
		}
		if still > patience {
			r.fail("L2: a waiter sleeps beside a free lock", "%d wait %s after the last release, and there was no fault:\n%s", waiting, still, r.queues())
			return
		}
		if time.Since(start) > bound {
			if waiting > 0 {
				r.fail("L2: a waiter waits for ever", "%d wait after %s, with everything released and no fault:\n%s", waiting, bound, r.queues())
			}
			return
		}
	}
}

// patienceLocked is how long a waiter may sleep in real time beside a lock that it can get. Without
// a fault it is told at once; the patience is for a busy machine, and for a member of the store
// that another program has stopped. After faults, and after a loss or an eviction, L2's bound
// counts, and MinHold keeps a lock after its release.
func (r *run) patienceLocked() time.Duration {
	patience := 6*time.Second + 2*r.base
	if r.fake || r.faulty || r.stranded || len(r.evicted) > 0 {
		return longest
	}
	for _, h := range r.holds {
		for _, l := range h.each {
			if errors.Is(l.Err(), hasp.ErrLost) {
				return longest
			}
		}
		patience = max(patience, 6*time.Second+2*r.base+h.step.Opts.MinHold)
	}
	return patience
}

const longest = 1<<63 - 1

// answers reports whether the stores do, to a new client that takes a lock, and no later than a
// member that was stopped makes them. On a busy machine they stop at times, with their disk, or
// take seconds for a connection; and a waiter that has asked them and has no answer does not sleep.
func (r *run) answers() bool {
	began := time.Now()
	r.connecting <- struct{}{}
	defer func() { <-r.connecting }()
	ctx, cancel := context.WithTimeout(context.Background(), r.base+time.Second)
	defer cancel()
	for _, store := range r.at {
		c, err := hasp.New(store.Open(r.tb), hasp.WithTTL(r.base))
		if err != nil {
			r.tb.Fatalf("new client: %v", err)
		}
		l, err := c.Mutex(r.name(0) + "/answers").TryLock(ctx)
		if err == nil {
			err = l.Release(ctx)
		}
		_ = c.Close() // with what it has, if it got no answer
		if err != nil {
			return false
		}
	}
	return time.Since(began) < r.base+time.Second
}

// bound is the time in which a waiter must get a free lock, just after faults have ended: L2, plus
// the delays by the holders' options and by faults.
func (r *run) bound() time.Duration {
	most := r.base
	for _, m := range r.machines {
		most = max(most, m.TTL)
	}
	for _, s := range r.p.Steps {
		if s.Do == LateRequests {
			most = max(most, s.Time)
		}
	}
	bound := 2*most + 2*most/3 + 2*time.Second
	if !r.fake {
		bound += 20 * time.Second
	}
	return bound
}

// rest is a pause between two looks.
func (r *run) rest() {
	time.Sleep(r.base / 50)
	r.settle()
}

// checkEmpty requires that nothing is left in the stores. The entries of a dead machine go with its
// TTL, which some stores count from when a client has first seen the entry: so each round looks at
// all names.
func (r *run) checkEmpty() {
	for end := time.Now().Add(r.bound()); ; r.rest() {
		left := r.left()
		if left == "" {
			return
		}
		if time.Now().After(end) {
			r.fail("L4: something is left", "after all clients are closed: %s", left)
			return
		}
	}
}

// left returns what the operators see in the stores.
func (r *run) left() string {
	var left strings.Builder
	for i := range r.p.Names {
		for _, c := range r.operators {
			q, err := c.Inspect(context.Background(), r.name(i))
			if err != nil || len(q.Holders)+len(q.Waiters) > 0 {
				fmt.Fprintf(&left, "%+v, %v\n", q, err)
			}
		}
	}
	return left.String()
}

// checkAllWoken is checkWoken in real time, before all is released: that would wake a waiter that
// sleeps beside a lock that it can get, and hide the fault.
func (r *run) checkAllWoken() {
	r.mu.Lock()
	patience := r.patienceLocked()
	r.mu.Unlock()
	if patience == longest {
		return
	}
	start := time.Now()
	for end := start.Add(patience); ; time.Sleep(r.base / 10) {
		asleep := r.sleepers()
		if asleep == "" {
			return
		}
		if !r.answers() {
			if time.Since(start) > 10*patience {
				return // no conclusion is possible on this machine
			}
			end = time.Now().Add(patience)
		}
		if time.Now().After(end) {
			r.mu.Lock()
			ours := r.patienceLocked() == patience // nothing was lost meanwhile
			r.mu.Unlock()
			if ours {
				r.fail("L2: a holder was not woken", "%s holds by the store, and still waits after %s:\n%s", asleep, patience, r.queues())
			}
			return
		}
	}
}

// checkWoken requires, as long as there was no fault, that every holder in the store knows that it
// holds. Only in fake time is that so at once.
func (r *run) checkWoken() {
	r.mu.Lock()
	faulty := r.faulty
	r.mu.Unlock()
	if faulty {
		return
	}
	if asleep := r.sleepers(); asleep != "" {
		r.fail("L2: a holder was not woken", "%s holds by the store, and still waits:\n%s", asleep, r.queues())
	}
}

// sleepers returns an entry that holds in the store and whose client does not know it; "" if there
// is none.
func (r *run) sleepers() string {
	if r.waiting() == 0 {
		return ""
	}
	for i := range r.p.Names {
		for store, c := range r.operators {
			q, err := c.Inspect(context.Background(), r.name(i))
			if err != nil {
				if r.fake {
					r.fail("inspect", "inspect: %v", err)
				}
				return ""
			}
			for _, e := range q.Holders {
				if a := r.asleep(e.Owner.Note, store); a != nil {
					return e.Owner.Note
				}
			}
		}
	}
	return ""
}

func (r *run) asleep(note string, store int) *acquisition {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.pending {
		if a.note == note && a.machine.Store == store && (len(a.claims) == 1 || a.step.Do.ofSeveral()) {
			return a
		}
	}
	return nil
}

// queues shows the entries of the stores, and the waiters.
func (r *run) queues() string {
	var b strings.Builder
	for i := range r.p.Names {
		for store, c := range r.operators {
			q, err := c.Inspect(context.Background(), r.name(i))
			fmt.Fprintf(&b, "name %d at store %d:", i, store)
			for _, e := range q.Holders {
				fmt.Fprintf(&b, " holds %s (%s, units %d, token %d)", e.Owner.Note, e.ID, e.Units, e.Token)
			}
			for _, e := range q.Waiters {
				fmt.Fprintf(&b, " waits %s (%s, units %d, token %d)", e.Owner.Note, e.ID, e.Units, e.Token)
			}
			if err != nil {
				fmt.Fprintf(&b, " %v", err)
			}
			b.WriteByte('\n')
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.pending {
		fmt.Fprintf(&b, "step %s of client %d has not returned\n", a.note, a.client)
	}
	return b.String()
}
