package zklock

import (
	"encoding/binary"
	"fmt"
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

// requests has the types of all requests that come on new connections sent to the channel.
func (s *site) requests() chan int32 {
	all := make(chan int32, 10_000)
	s.net[0].Lose(faultnet.Up, 1, func(chunk []byte) bool {
		for rest := chunk; len(rest) >= 12; {
			n := int(binary.BigEndian.Uint32(rest))
			if n == 44 || n == 45 { // asks for the session
				all <- 0
			} else {
				all <- int32(binary.BigEndian.Uint32(rest[8:]))
			}
			rest = rest[min(4+n, len(rest)):]
		}
		return false
	})
	return all
}

// On a new connection no request is sent before the library has sent the watches that it sets
// again. It says with them up to which change it knows everything, and would say too much by
// what others have been answered meanwhile, which is also a data race.
func TestWatchesAreSetAgainFirst(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	s, name := newSite(t, calm, nil, z), uniqueName(t)
	held := s.lock(t, name)
	c := s.conn(t)
	plant(t, c, 20)
	first := 0
	for range 10 {
		// Nothing is under way when the connection breaks, and much is wanted when there is
		// another.
		s.net[0].Refuse()
		s.net[0].Cut()
		testkit.Eventually(t, "the end of the connection", func() bool {
			select {
			case <-c.whenReady():
				return false
			default:
				return true
			}
		})
		asked := s.requests()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { s.entries(t, name) })
		}
		if err := s.net[0].Accept(); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		s.net[0].Heal() // disarms what looks at the requests
		close(asked)
		order := []int32{}
		for op := range asked {
			order = append(order, op)
		}
		if len(order) >= 2 && order[0] == 0 && order[1] == opSetWatches {
			first++
		} else {
			t.Logf("the types of the requests on a new connection: %v", order)
		}
	}
	// We wait for the library for a while and no longer, which a busy machine may not give it.
	if first < 5 {
		t.Errorf("the watches were set again first %d times of 10", first)
	}
	testkit.Release(t, held)
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
