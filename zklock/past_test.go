package zklock

import (
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// What a path was used for before is not taken for its present use, also by a client whose
// server stood still and catches up: with strategy Node one path has all turns after each other,
// and in a queue the lock's node has. A turn is granted once its predecessor has ended, not
// lost for what was told of an earlier one, and released once.
//
// The reasons: a create is answered by a server that knows of it, and so of all that happened
// to the path before; what it tells of that it has told before it answers. A server that knows
// less than the client has been told refuses to continue its session. What a new connection
// finds at a path that others use too is looked at (watchSelf).
func TestPathWithPast(t *testing.T) {
	testtier.Long(t)
	t.Parallel() // it waits
	e := backends.StartZooKeeperEnsemble(t, backends.ZooKeeperOptions{})
	leader, err := e.Leader()
	if err != nil {
		t.Fatal(err)
	}
	var followers []*backends.ZooKeeper
	for _, m := range e.Members {
		if m != leader {
			followers = append(followers, m)
		}
	}
	for _, o := range []*Options{{Root: "/past-node", Strategy: StrategyNode}, {Root: "/past"}} {
		const ttl = 10 * time.Second
		at, behind := newSite(t, ttl, o, leader), newSite(t, ttl, o, followers[0])
		moves, name := newSite(t, ttl, o, followers...), uniqueName(t)
		last := uint64(0)
		turn := func(l *hasp.Lease) {
			t.Helper()
			if l.Token() <= last {
				t.Fatalf("token %d after %d", l.Token(), last)
			}
			last = l.Token()
		}
		for round := range 12 {
			// A turn that begins on a server that lags, behind several that it has not seen.
			pause(t, followers[0])
			for range 3 {
				l := at.lock(t, name)
				turn(l)
				testkit.Release(t, l)
			}
			held := at.lock(t, name)
			turn(held)
			waiting := begin(t, behind, name)
			if round%3 == 0 {
				testkit.Release(t, held)
			}
			resume(t, followers[0])
			if round%3 == 1 {
				time.Sleep(50 * time.Millisecond) // the waiter has its watch, or not
				pause(t, followers[0])
			}
			if round%3 != 0 {
				testkit.Release(t, held)
				resume(t, followers[0])
			}
			next := testkit.Granted(t, waiting)
			turn(next)

			// It goes on while its server stands still; and so does one that moves between two of
			// them with its watches.
			time.Sleep(2 * selfWatchHeld)
			pause(t, followers[0])
			time.Sleep(20 * time.Millisecond)
			resume(t, followers[0])
			testkit.Release(t, next)
			l := moves.lock(t, name)
			turn(l)
			time.Sleep(2 * selfWatchHeld)
			pause(t, followers[round%2])
			for _, p := range moves.net {
				p.Cut()
			}
			time.Sleep(20 * time.Millisecond)
			resume(t, followers[round%2])
			testkit.Release(t, l)
		}
	}
}

func begin(t *testing.T, s *site, name string) <-chan *hasp.Lease {
	got := make(chan *hasp.Lease, 1)
	go func() {
		defer close(got)
		l, err := s.Mutex(name).Lock(t.Context())
		if err != nil {
			t.Error(err)
			return
		}
		got <- l
	}()
	return got
}

func pause(t *testing.T, z *backends.ZooKeeper) {
	t.Helper()
	if err := z.Pause(); err != nil {
		t.Fatal(err)
	}
}

func resume(t *testing.T, z *backends.ZooKeeper) {
	t.Helper()
	if err := z.Resume(); err != nil {
		t.Fatal(err)
	}
}
