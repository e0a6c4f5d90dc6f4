package zklock

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// A client that waits behind a node that it may not read sees it leave, also when its owner has
// published in it meanwhile. The servers tell it nothing of the node itself, so that it slept
// for as long as nothing else woke it.
func TestUnreadableBlocker(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	a := admin(t, z)
	if err := a.AddAuth("digest", []byte("ana:s3cret")); err != nil {
		t.Fatal(err)
	}
	for _, o := range []*Options{{Root: "/hidden"}, {Root: "/hidden-node", Strategy: StrategyNode}} {
		s, name := newSite(t, calm, o, z), uniqueName(t)
		testkit.Release(t, s.lock(t, name))
		node, _ := s.b.opts.path(name)
		flags, watched := int32(zk.FlagEphemeral), o.Root
		if o.Strategy != StrategyNode {
			watched, node, flags = node, node+"/"+DialectCurator.prefix(requestOf(name, 1)), zk.FlagEphemeralSequential
		}
		node, err := a.Create(node, nil, flags, zk.AuthACL(zk.PermAll))
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 1)
		go func() {
			l, err := s.Mutex(name).Lock(t.Context())
			if err == nil {
				err = l.Release(t.Context())
			}
			got <- err
		}()
		testkit.Eventually(t, "the watch", func() bool { return s.conn(t).watches.confirmed(watchKey{watched, children}) })
		if _, err := a.Set(node, []byte("published"), -1); err != nil {
			t.Fatal(err)
		}
		asked, begun := s.net[0].Stats().Up.Received, time.Now()
		time.Sleep(300 * time.Millisecond)
		// Room for the signs of life of a session of 30 s, and none for a waiter that asks on and
		// on.
		if d, room := s.net[0].Stats().Up.Received-asked, 200+100*int64(time.Since(begun)/time.Second); d > room {
			t.Errorf("%d bytes were asked while nothing happens, more than %d", d, room)
		}
		if err := a.Delete(node, -1); err != nil {
			t.Fatal(err)
		}
		if err := testkit.Await(t, "the waiter under "+o.Root, got); err != nil {
			t.Error(err)
		}
	}
}

// Where not even the root may be read no event comes, and the waiter asks from time to
// time.
func TestUnreadableRoot(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	a, root := admin(t, z), "/"+uniqueName(t)
	if err := a.AddAuth("digest", []byte("ana:s3cret")); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Create(root, nil, 0, append(zk.AuthACL(zk.PermAll), zk.WorldACL(zk.PermCreate|zk.PermDelete)...)); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Create(root+"/a", nil, zk.FlagEphemeral, zk.AuthACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	s := newSite(t, calm, &Options{Root: root, Strategy: StrategyNode}, z)
	requests := s.record(t, "a")
	waiting := make(chan *hasp.Lease, 1)
	go func() {
		defer close(waiting)
		if l, err := s.Mutex("a").Lock(t.Context()); err == nil {
			waiting <- l
		}
	}()
	testkit.Eventually(t, "an attempt to watch", func() bool {
		return slices.ContainsFunc(requests.work(), func(a asked) bool { return a.op == opList })
	})
	if err := a.Delete(root+"/a", -1); err != nil {
		t.Fatal(err)
	}
	testkit.Release(t, testkit.Granted(t, waiting))
}

// A client may make nodes in a lock's node, and not list them. Its lock is refused, which says that
// nothing was changed: its node stood in the way of all others until its session ended.
func TestUnreadableQueue(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	a, root := admin(t, z), "/"+uniqueName(t)
	if err := a.AddAuth("digest", []byte("ana:s3cret")); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Create(root, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Create(root+"/a", nil, 0, append(zk.AuthACL(zk.PermAll), zk.WorldACL(zk.PermCreate|zk.PermDelete)...)); err != nil {
		t.Fatal(err)
	}
	s := newSite(t, calm, &Options{Root: root}, z)
	for range 2 { // the first waits for the answer about the root
		if _, err := s.Mutex("a").Lock(t.Context()); !errors.Is(err, driver.ErrRefused) {
			t.Errorf("locked without the permission to list: %v", err)
		}
		if names, _, err := a.Children(root + "/a"); err != nil || len(names) != 0 {
			t.Errorf("refused, and left in the queue: %q, %v", names, err)
		}
	}
}
