package zklock

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
)

// The context of a Wait ends when the nearest of those ahead has left, before the answer to the
// list by which it looks who is there now. The next Wait must not go on with what is left of the
// old list: that has the oldest alone, and when it left as well, the waiter took the lock beside
// the one that was between them.
func TestWaitEndsUnderTheList(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	here, beside, name := newSite(t, calm, nil, z), newSite(t, calm, nil, z), uniqueName(t)
	others, s := openSession(t, beside.b, calm), openSession(t, here.b, calm)
	enter := func(s *session, id string) *ticket {
		k := s.Ticket(testkit.RequestAs(name, id)).(*ticket)
		if _, err := k.Enqueue(t.Context()); err != nil {
			t.Fatal(err)
		}
		return k
	}
	first, middle, nearest := enter(others, "first"), enter(others, "middle"), enter(others, "nearest")
	waits := enter(s, "waits")
	type answer struct {
		v   driver.Verdict
		err error
	}
	wait := func(ctx context.Context) <-chan answer {
		got := make(chan answer, 1)
		go func() {
			v, err := waits.Wait(ctx)
			got <- answer{v, err}
		}()
		return got
	}
	watches := func(k *ticket) bool { return s.watches.confirmed(watchKey{k.node, children}) }

	ctx, cancel := context.WithCancel(t.Context())
	got := wait(ctx)
	waits.mu.Lock()
	waits.startSelfWatchLocked(0) // as after some seconds of waiting
	waits.mu.Unlock()
	testkit.Eventually(t, "the watches", func() bool { return watches(waits) && watches(nearest) })
	here.net[0].Set(faultnet.Up, faultnet.Rule{Mode: faultnet.Hold})
	if err := nearest.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := here.net[0].WaitFor(testkit.Context(t), func(s faultnet.Stats) bool { return s.Up.Waiting() > 0 }); err != nil {
		t.Fatal(err)
	}
	cancel()
	if a := testkit.Await(t, "the end of the first wait", got); !errors.Is(a.err, context.Canceled) {
		t.Fatalf("%+v", a)
	}
	here.net[0].Heal()

	got = wait(t.Context())
	testkit.Eventually(t, "the watch of the next wait", func() bool { return watches(middle) || watches(first) })
	if err := first.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.catchUp(t.Context()); err != nil { // its events have come by now
		t.Fatal(err)
	}
	select {
	case a := <-got:
		t.Fatalf("%+v, and there is one ahead", a)
	case <-time.After(100 * time.Millisecond):
	}
	if err := middle.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a := testkit.Await(t, "the grant", got); a.err != nil || !a.v.Held {
		t.Errorf("%+v", a)
	}
}

// Who follows a name that is not there is told when it is used, and asks nothing until then, also
// beside another who does. The answer that there is no such node woke those who had asked, and they
// asked again, for ever.
func TestWatchOfUnusedName(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	s, name := newSite(t, calm, nil, z), uniqueName(t)
	openSession(t, s.b, calm) // the watches travel on its connection
	asked := s.record(t, name)
	var told [2]atomic.Int64
	for i := range told {
		go s.b.Watch(t.Context(), name, func() { told[i].Add(1) })
	}
	testkit.Eventually(t, "both watches", func() bool { return told[0].Load() > 0 && told[1].Load() > 0 })
	time.Sleep(200 * time.Millisecond)
	if n := len(asked.work()); n > 10 {
		t.Errorf("%d requests of two who follow a name that is not there", n)
	}
	before := [2]int64{told[0].Load(), told[1].Load()}
	testkit.Release(t, newSite(t, calm, nil, z).lock(t, name))
	testkit.Eventually(t, "both are told", func() bool { return told[0].Load() > before[0] && told[1].Load() > before[1] })
}

// Where a client may make nodes and not delete them, a release with strategy node is refused, and
// not taken for one of a lock that another has by now.
func TestReleaseWithoutPermission(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	a, root, name := admin(t, z), "/"+uniqueName(t), uniqueName(t)
	if _, err := a.Create(root, nil, 0, zk.WorldACL(zk.PermAll&^zk.PermDelete)); err != nil {
		t.Fatal(err)
	}
	s := openSession(t, newSite(t, calm, &Options{Root: root, Strategy: StrategyNode}, z).b, calm)
	k := s.Ticket(testkit.RequestAs(name, "held"))
	if v, err := k.Enqueue(t.Context()); err != nil || !v.Held {
		t.Fatalf("%+v, %v", v, err)
	}
	if err := k.Leave(t.Context()); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("released without the permission to delete: %v", err)
	}
	if _, err := a.SetACL(root, zk.WorldACL(zk.PermAll), -1); err != nil {
		t.Fatal(err)
	}
	if err := k.Leave(t.Context()); err != nil {
		t.Errorf("released with the permission to delete: %v", err)
	}
}
