package zklock

import (
	"errors"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// An administrator deletes the holder's node: it is told at once, by the watch.
func TestDeletedByAdministrator(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	for _, o := range []*Options{nil, {Strategy: StrategyNode, Root: "/hasp-node"}} {
		s, name := newSite(t, calm, o, z), uniqueName(t)
		held := s.lock(t, name)
		time.Sleep(2 * selfWatchHeld) // the watch stands, or the deletion shows when it is set
		a := admin(t, z)
		path, _ := s.b.opts.path(name)
		if o == nil {
			path += "/" + onlyChild(t, a, path)
		}
		if err := a.Delete(path, -1); err != nil {
			t.Fatal(err)
		}
		lost(t, held, hasp.ReasonDenied) // within patience: renewals come every few minutes
		testkit.Release(t, s.lock(t, name))
	}
}

func onlyChild(t testing.TB, a *zk.Conn, parent string) string {
	t.Helper()
	names, _, err := a.Children(parent)
	if err != nil || len(names) != 1 {
		t.Fatalf("children of %s: %q, %v", parent, names, err)
	}
	return names[0]
}

// The lock's node is deleted with everything in it, in one transaction. The holder is told,
// the waiter queues again, under a new node, and tokens grow on although the numbers begin
// anew.
func TestParentDeleted(t *testing.T) {
	t.Parallel()
	_, _, next := deleteLock(t, slices.Backward[[]child])
	testkit.Release(t, next)
}

// The same with the holder's node first: the waiter may hear that its blocker has left
// before it hears, of the same transaction, that its own node has. It is granted then for
// that moment, with the token of its old node, and told of the loss; it must not go on to
// believe, and the next holder has a higher token. See ticket.dropDeleted.
func TestParentDeletedHolderFirst(t *testing.T) {
	t.Parallel()
	s, name, next := deleteLock(t, slices.All[[]child])
	if es := s.entries(t, name); len(es) == 0 {
		lost(t, next, hasp.ReasonDenied)
	} else {
		testkit.Release(t, next) // it had queued again
	}
	last := s.lock(t, name)
	if last.Token() <= next.Token() || next.Held() {
		t.Errorf("token %d after %d, held: %t", last.Token(), next.Token(), next.Held())
	}
	testkit.Release(t, last)
}

// deleteLock deletes a lock's node and its two entries, in this order, in one transaction,
// and returns what the waiter acquires after.
func deleteLock(t *testing.T, order func([]child) iter.Seq2[int, child]) (*site, string, *hasp.Lease) {
	t.Helper()
	z := backends.SharedZooKeeper(t)
	s, other, name := newSite(t, calm, nil, z), newSite(t, calm, nil, z), uniqueName(t)
	held := s.lock(t, name)
	waiting := other.queue(t, name)
	a := admin(t, z)
	parent, _ := s.b.opts.path(name)
	names, _, err := a.Children(parent)
	if err != nil {
		t.Fatal(err)
	}
	var ops []any
	for _, c := range order(DialectCurator.parseAll(names)) {
		ops = append(ops, &zk.DeleteRequest{Path: parent + "/" + c.name, Version: -1})
	}
	if _, err := a.Multi(append(ops, &zk.DeleteRequest{Path: parent, Version: -1})...); err != nil {
		t.Fatal(err)
	}
	lost(t, held, hasp.ReasonDenied)
	next := testkit.Granted(t, waiting)
	if next.Token() <= held.Token() {
		t.Errorf("token %d after %d", next.Token(), held.Token())
	}
	return s, name, next
}

// Children that are no entries neither block a lock nor break it, nor do they show.
func TestGarbageChildren(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	s, name := newSite(t, calm, nil, z), uniqueName(t)
	testkit.Release(t, s.lock(t, name))
	a := admin(t, z)
	for _, g := range []string{"garbage", "lock-0000000000", "_c_-lock-0000000000", "locks", "leases", "\u00e9", "0000000000"} {
		s.put(t, a, name, g, []byte("{"), 0)
	}
	held := s.lock(t, name)
	if es := s.entries(t, name); len(es) != 1 || es[0].ID != held.ID() {
		t.Errorf("entries %+v", es)
	}
	testkit.Release(t, held)
	for got, err := range s.Names(t.Context(), name) {
		t.Errorf("listed %q, %v", got, err)
	}
}

// An evicted waiter that has not been told must not be granted by the event that its
// blocker has left: it is not in the queue.
func TestEvictedWaiterNotGranted(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	b := patient(t, nil, z.Addr)
	name := uniqueName(t)
	holder := openSession(t, b, calm).Ticket(testkit.RequestAs(name, "holder"))
	if _, err := holder.Enqueue(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, guarded := range []bool{false, true} {
		k := openSession(t, b, calm).Ticket(testkit.RequestAs(name, []string{"w0", "w1"}[i])).(*ticket)
		if _, err := k.Enqueue(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !guarded {
			k.mu.Lock()
			k.selfWatched = true // and so no watch is set
			k.mu.Unlock()
		}
		got := make(chan error, 1)
		go func() {
			v, err := k.Wait(t.Context())
			if v.Held {
				err = errors.New("held")
			}
			got <- err
		}()
		time.Sleep(50 * time.Millisecond)
		if err := b.Evict(t.Context(), name, k.request.ID, ""); err != nil {
			t.Fatal(err)
		}
		if guarded {
			if err := <-got; !errors.Is(err, driver.ErrGone) { // though the holder stays
				t.Errorf("an evicted waiter: %v", err)
			}
			continue
		}
		if err := holder.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-got; !errors.Is(err, driver.ErrGone) {
			t.Errorf("an evicted waiter that was not told: %v", err)
		}
		holder = openSession(t, b, calm).Ticket(testkit.RequestAs(name, "holder2"))
		if _, err := holder.Enqueue(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
