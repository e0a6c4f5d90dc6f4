package zklock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// waiters are n tickets behind a holder, in a few sessions: below the core, whose local queue would
// let only one of each client into the queue.
type waiters struct {
	holder  driver.Ticket
	granted chan int // who, in the order of grants
	tickets []driver.Ticket
	ended   sync.WaitGroup
}

func newWaiters(t *testing.T, z *backends.ZooKeeper, o *Options, name string, n int) *waiters {
	t.Helper()
	b := patient(t, o, z.Addr)
	c := &waiters{granted: make(chan int, n)}
	sessions := make([]*session, 8)
	for i := range sessions {
		sessions[i] = openSession(t, b, calm) // renewals and pings would blur the counts
	}
	c.holder = sessions[0].Ticket(testkit.RequestAs(name, name+"-holder"))
	if v, err := c.holder.Enqueue(t.Context()); err != nil || !v.Held {
		t.Fatalf("%+v, %v", v, err)
	}
	c.tickets = make([]driver.Ticket, n)
	for i := range n { // one after the other: the order is known
		c.tickets[i] = sessions[i%8].Ticket(testkit.RequestAs(name, fmt.Sprint(name, "-", i)))
		if v, err := c.tickets[i].Enqueue(t.Context()); err != nil || v.Held {
			t.Fatalf("%+v, %v", v, err)
		}
	}
	for i, k := range c.tickets {
		c.ended.Go(func() {
			if v, err := k.Wait(t.Context()); err == nil && v.Held {
				c.granted <- i
			} else if t.Context().Err() == nil {
				t.Errorf("waiter %d: %+v, %v", i, v, err)
			}
		})
	}
	return c
}

// sent is how many packets the server gets from clients; our own question is one of none.
func sent(t *testing.T, z *backends.ZooKeeper) int { return number(t, z, "zk_packets_received") }

// L5: with any number of waiters, a release wakes exactly one: the server tells one client,
// which asks once, and the watches of all others stay as they are.
func TestReleaseWakesOne(t *testing.T) {
	t.Parallel()
	releaseWakesOne(t, 128)
}

func TestReleaseWakesOneOfMany(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	releaseWakesOne(t, 512, 1000)
}

func releaseWakesOne(t *testing.T, sizes ...int) {
	z := backends.StartZooKeeper(t, backends.ZooKeeperOptions{})
	for _, n := range sizes {
		name := uniqueName(t)
		c := newWaiters(t, z, nil, name, n)
		// Each waiter watches its blocker and itself, as the holder does. The first waiter's on
		// the holder is the holder's own: both are in one session.
		testkit.Eventually(t, "the vigils", func() bool { return number(t, z, "zk_watch_count") >= 2*n })
		watches, packets := number(t, z, "zk_watch_count"), sent(t, z)
		if err := c.holder.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		if first := <-c.granted; first != 0 {
			t.Fatalf("%d waiters: number %d was granted first", n, first)
		}
		time.Sleep(200 * time.Millisecond) // each other waiter that was woken has asked by now
		if got := len(c.granted); got != 0 {
			t.Errorf("%d waiters: %d more were granted", n, got)
		}
		// The delete, at most one list, and a ping of each of eight sessions, which comes once in
		// minutes.
		if d := sent(t, z) - packets; d > 2+8 {
			t.Errorf("%d waiters: %d packets for one release", n, d)
		}
		// The holder's own, and that of the one who was woken.
		if d := watches - number(t, z, "zk_watch_count"); d < 0 || d > 2 {
			t.Errorf("%d waiters: %d watches fired", n, d)
		}
		// Everybody else in turn, so that what was queued was a queue.
		order := []int{0}
		for i := range n - 1 {
			if err := c.tickets[order[i]].Leave(t.Context()); err != nil {
				t.Fatal(err)
			}
			order = append(order, <-c.granted)
		}
		c.ended.Wait()
		if !slices.IsSorted(order) {
			t.Errorf("served in the order %v", order)
		}
		if err := c.tickets[n-1].Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// The control: what the test above counts is there to be counted. With strategy Node a
// release wakes all, and each of them asks.
func TestReleaseOfNodeWakesAll(t *testing.T) {
	t.Parallel()
	z := backends.StartZooKeeper(t, backends.ZooKeeperOptions{})
	const n = 64
	c := newWaiters(t, z, &Options{Strategy: StrategyNode}, uniqueName(t), n)
	testkit.Eventually(t, "a watch by each session", func() bool { return number(t, z, "zk_watch_count") >= 8 })
	packets := sent(t, z)
	if err := c.holder.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-c.granted
	testkit.Eventually(t, "a create by each waiter", func() bool { return sent(t, z)-packets >= n })
}

// What an acquisition costs the server does not grow with the number of those who wait:
// to be woken, one list, to leave.
func TestPacketsOfWaiters(t *testing.T) {
	t.Parallel()
	z := backends.StartZooKeeper(t, backends.ZooKeeperOptions{})
	per := map[int]float64{}
	for _, n := range []int{16, 256} {
		c := newWaiters(t, z, nil, uniqueName(t), n)
		testkit.Eventually(t, "a watch by each waiter", func() bool { return number(t, z, "zk_watch_count") >= n })
		packets := sent(t, z)
		holder := c.holder
		for range n {
			if err := holder.Leave(t.Context()); err != nil {
				t.Fatal(err)
			}
			holder = c.tickets[<-c.granted]
		}
		per[n] = float64(sent(t, z)-packets-8) / float64(n) // eight sessions ping, once in minutes; none renews
		if err := holder.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// A delete and a list; and a self-watch where waiting took long.
	if per[16] > 3 || per[256] > 3.2 {
		t.Errorf("packets per acquisition, by the number of waiters: %v", per)
	}
	t.Logf("packets per acquisition after the queue stood, by the number of waiters: %v", per)
}

// The whole price of a free lock, as the documentation says: a create and a list that
// travel together, and a delete.
func TestPacketsUncontended(t *testing.T) {
	t.Parallel()
	z := backends.StartZooKeeper(t, backends.ZooKeeperOptions{})
	s, name := newSite(t, calm, nil, z), uniqueName(t)
	testkit.Release(t, s.lock(t, name))
	const n = 200
	asked := s.record(t, name)
	for range n {
		testkit.Release(t, s.lock(t, name))
	}
	work := asked.work()
	// A server removes an empty container once a minute: then a create and a list fail, and are
	// repeated.
	made := 0
	for _, a := range work {
		if a.op == opCreateContainer {
			made++
		}
	}
	if len(work) < 3*n || len(work) > 3*n+3*made {
		t.Errorf("%d requests for %d times lock and unlock, and %d containers; the last: %v", len(work), n, made, work[max(0, len(work)-9):])
	}
}

// A node that two wait for is watched once, and a wait that is given up and begun again
// sets no second watch: the library cannot remove any.
func TestWatchesAreShared(t *testing.T) {
	t.Parallel()
	z := backends.StartZooKeeper(t, backends.ZooKeeperOptions{})
	b := patient(t, nil, z.Addr)
	s, name := openSession(t, b, calm), uniqueName(t)
	if _, err := s.Ticket(testkit.RequestAs(name, "a")).Enqueue(t.Context()); err != nil {
		t.Fatal(err)
	}
	waits := s.Ticket(testkit.RequestAs(name, "b"))
	if _, err := waits.Enqueue(t.Context()); err != nil {
		t.Fatal(err)
	}
	wait := func() {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if _, err := waits.Wait(ctx); ctx.Err() == nil {
			t.Errorf("wait: %v", err)
		}
		if err := b.Watch(ctx, name, func() {}); ctx.Err() == nil {
			t.Errorf("watch: %v", err)
		}
	}
	wait()
	time.Sleep(2 * selfWatchHeld)
	packets := sent(t, z)
	const n = 50
	for range n {
		wait()
	}
	// Watch lists the name each time; nothing else is asked.
	if d := sent(t, z) - packets; d > n+n/5 {
		t.Errorf("%d packets for %d repeated waits", d, n)
	}
	s.watches.mu.Lock()
	defer s.watches.mu.Unlock()
	if listeners := len(s.watches.listeners); listeners > 2 { // the vigils
		t.Errorf("%d paths have listeners", listeners)
	}
}
