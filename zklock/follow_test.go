package zklock

import (
	"context"
	"errors"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
)

// armedKey reports whether a watch was asked for, and its event has not come.
func armedKey(c *conn, key watchKey) bool {
	c.watches.mu.Lock()
	defer c.watches.mu.Unlock()
	return c.watches.armed[key] != nil
}

// Who follows a name is told of a change although the watch that another has asked for is not set
// yet: that one's goroutine has not run.
func TestFollowBesideUnsetWatch(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	s, beside, name := newSite(t, calm, nil, z), newSite(t, calm, nil, z), uniqueName(t)
	held := beside.lock(t, name) // the lock's node is there
	node, _ := s.b.opts.path(name)
	c := openSession(t, s.b, calm).conn
	if c.watches.listen(watchKey{node, children}, &listener{wake: func(bool) {}}) == nil {
		t.Fatal("somebody else watches")
	}
	told := make(chan struct{}, 10)
	go s.b.Watch(t.Context(), name, func() { told <- struct{}{} })
	testkit.Await(t, "the watch", told)
	next := beside.queue(t, name) // of which the node of the first tells nothing
	testkit.Await(t, "news of the waiter", told)
	testkit.Release(t, held)
	testkit.Release(t, testkit.Granted(t, next))
}

// Who asks to be told when a node is made gives up, and the server answers that it is there.
// Another who relies on that watch is woken, since it tells of the node's data alone.
func TestMadeUnderTheRequest(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	s, a, node := newSite(t, calm, nil, z), admin(t, z), "/"+uniqueName(t)
	if _, err := a.Create(node, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	c := openSession(t, s.b, calm).conn
	s.net[0].Set(faultnet.Down, faultnet.Rule{Mode: faultnet.Hold})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := c.watchMaking(ctx, node, &listener{wake: func(bool) {}})
		ended <- err
	}()
	key := watchKey{node, contents}
	testkit.Eventually(t, "the request", func() bool { return armedKey(c, key) })
	woken := make(chan struct{}, 1)
	if c.watches.listen(key, &listener{wake: func(bool) { woken <- struct{}{} }}) != nil {
		t.Fatal("the watch was not asked for")
	}
	cancel()
	if err := testkit.Await(t, "the end of the call", ended); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	s.net[0].Heal()
	testkit.Await(t, "that the node is there", woken)
}
