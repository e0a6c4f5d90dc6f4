package zklock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
)

// plant leaves watches in the client library that never fire and take long to set again.
func plant(t *testing.T, c *conn, n int) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if _, _, _, err := c.zk.ExistsW(fmt.Sprint("/nowhere", strings.Repeat("x", 4000), i)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// told has the zxids by which a client tells a server how many changes it knows: in its requests
// for a session, and in those that set watches again.
type told struct {
	mu               sync.Mutex
	session, watches []int64
}

// tells notes what new connections tell, until the network is healed.
func (s *site) tells() *told {
	var w told
	fresh, up := true, &frames{}
	s.net[0].Lose(faultnet.Up, 1, func(chunk []byte) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		up.feed(chunk, func(body []byte) {
			switch {
			case fresh:
				w.session = append(w.session, int64(binary.BigEndian.Uint64(body[4:])))
			case binary.BigEndian.Uint32(body[4:]) == opSetWatches:
				w.watches = append(w.watches, int64(binary.BigEndian.Uint64(body[8:])))
			}
			fresh = false
		})
		return false
	})
	return &w
}

// On a new connection the servers are told up to which change everything is known: what had been
// answered on the connections before, and nothing of what others are answered until the watches are
// set again. Watches would otherwise be set as of a later moment, and no client would be told of
// changes before it.
func TestReconnectionTellsWhatIsKnown(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	s, name := newSite(t, calm, nil, z), uniqueName(t)
	held := s.lock(t, name)
	c := s.conn(t)
	plant(t, c, 100) // four requests, one after the other
	for round := range 10 {
		testkit.Release(t, s.lock(t, fmt.Sprint(name, round)))
		s.net[0].Refuse()
		s.net[0].Cut()
		testkit.Eventually(t, "the end of the connection", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return !c.up
		})
		known := c.lastZxid.Load()
		w := s.tells()
		var wg sync.WaitGroup
		for i := range 8 { // changes, while watches are set again
			wg.Go(func() {
				l, err := s.Mutex(fmt.Sprint(name, round, "-", i)).Lock(t.Context())
				if err == nil {
					err = l.Release(t.Context())
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		if err := s.net[0].Accept(); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		testkit.Eventually(t, "the watches to be set again", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return len(w.watches) >= 4
		})
		s.net[0].Heal() // disarms what looks at the requests
		w.mu.Lock()
		if want := []int64{known}; !slices.Equal(slices.Compact(slices.Clone(w.session)), want) || !slices.Equal(slices.Compact(slices.Clone(w.watches)), want) {
			t.Errorf("round %d: told %d with the session and %d with the watches; known was %d", round, w.session, w.watches, known)
		}
		w.mu.Unlock()
		if now := c.lastZxid.Load(); now <= known {
			t.Errorf("round %d: what was locked meanwhile has not changed the last zxid, %d", round, known)
		}
	}
	testkit.Release(t, held)
}

// A session can be closed while the node of a lock is being made, which the client library has a
// data race for: see createsEnded.
func TestCloseWhileANodeIsMade(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	s := newSite(t, calm, nil, z)
	testkit.Release(t, s.lock(t, uniqueName(t))) // the root is there
	d := openSession(t, s.b, calm)
	up := s.record(t, "any")
	s.net[0].Set(faultnet.Down, faultnet.Rule{Delay: 200 * time.Millisecond})
	parent, err := s.b.opts.path(uniqueName(t))
	if err != nil {
		t.Fatal(err)
	}
	made := make(chan error, 1)
	go func() { made <- createLockNode(d.conn, s.b.opts, parent) }()
	testkit.Eventually(t, "the create", func() bool {
		return slices.ContainsFunc(up.work(), func(a asked) bool { return a.op == opCreateContainer })
	})
	if err := d.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-made; err != nil {
		t.Errorf("the create, which the server has answered before it closed the session: %v", err)
	}
	if err := createLockNode(d.conn, s.b.opts, parent); !errors.Is(err, driver.ErrGone) {
		t.Errorf("a create after the end: %v", err)
	}
}

// A waiter that has reconnected is deleted by an administrator, and then its blocker leaves,
// before the library has set the waiter's watch on its own node again: that the blocker has
// left does not grant the lock to it. It did until the watch was set.
func TestMarginAfterReconnection(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	a := admin(t, z)
	for round := range 5 {
		name := uniqueName(t)
		holds, s := newSite(t, calm, nil, z), newSite(t, calm, nil, z)
		holder := openSession(t, holds.b, calm).Ticket(testkit.RequestAs(name, "holder")).(*ticket)
		if _, err := holder.Enqueue(t.Context()); err != nil {
			t.Fatal(err)
		}
		d := openSession(t, s.b, calm)
		waits := d.Ticket(testkit.RequestAs(name, "waits")).(*ticket)
		if _, err := waits.Enqueue(t.Context()); err != nil {
			t.Fatal(err)
		}
		type answer struct {
			v   driver.Verdict
			err error
		}
		got := make(chan answer, 1)
		go func() {
			v, err := waits.Wait(t.Context())
			got <- answer{v, err}
		}()
		own, blocker := watchKey{waits.node, children}, watchKey{holder.node, children}
		testkit.Eventually(t, "the watch on its own node", func() bool { return d.watches.confirmed(own) })
		plant(t, d.conn, 1500) // 6 MB, in fifty requests, one after the other
		s.net[0].Set(faultnet.Down, faultnet.Rule{Delay: 50 * time.Millisecond})
		s.net[0].Cut()
		testkit.Eventually(t, "a new connection", func() bool { return d.watches.current() == 2 })
		testkit.Eventually(t, "the watch on its blocker", func() bool { return d.watches.confirmed(blocker) })
		for _, node := range []string{waits.node, holder.node} {
			if err := a.Delete(node, -1); err != nil {
				t.Fatal(err)
			}
		}
		if r := <-got; r.err == nil {
			t.Fatalf("round %d: granted with %+v although its node had been deleted", round, r.v)
		}
	}
}
