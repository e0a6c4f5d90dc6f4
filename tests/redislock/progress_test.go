package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// A renewal without enough time keeps its progress: the next one continues with the entries that
// were renewed longest ago, and no entry is said to have more left than it has. (All progress was
// lost each time, until all entries were lost.) The network lets a third of a renewal through
// to each call: three are the least, however fast the machine is.
func TestRenewalGoesOn(t *testing.T) {
	testtier.Long(t)
	for _, strategy := range []string{"queue", "setnx", "redisson"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			server := backends.StartRedis(t, backends.RedisOptions{})
			net := testkit.Proxy(t, server.Addr)
			const n, ttl = 3000, 10 * time.Minute
			b := testkit.Open(t, "redis://"+net.Addr()+"?strategy="+strategy)
			gone := make(chan string, n)
			s, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: ttl, Gone: func(id string, _ error) { gone <- id }})
			must(t, err)
			defer b.Close()
			for i := range n {
				testkit.Held(t, s.Ticket(testkit.Request(fmt.Sprint("n", i))))
			}
			before := net.Stats().Up.Received
			if granted, err := s.KeepAlive(t.Context()); err != nil || granted != ttl {
				t.Fatalf("%s, %v", granted, err)
			}
			third := (net.Stats().Up.Received - before) / 3
			all := time.Now() // each must be renewed after this moment
			cut := 0
			for wait, end := 50*time.Millisecond, time.Now().Add(3*slack); ; wait += wait / 4 {
				began := time.Now()
				granted, err, whole := renewedBy(t, net, s, third, wait)
				if !whole {
					cut++
				}
				if granted > ttl {
					t.Fatalf("granted %s", granted)
				}
				// The time left counts from before the call: that tells the oldest renewal.
				oldest, known := granted, err == nil
				if partial := new(driver.PartialRenewal); errors.As(err, &partial) {
					oldest, known = slices.Min(slices.Collect(maps.Values(partial.Late))), true
				}
				if known && began.Add(oldest-ttl).After(all) {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("not through with all of them in %s: %s, %v", 3*slack, granted, err)
				}
			}
			if cut < 2 {
				t.Errorf("%d calls were cut off: nothing was slow", cut)
			}
			if len(gone) > 0 {
				t.Errorf("%s is said to be gone", <-gone)
			}
			for _, i := range []int{0, 1, n / 2, n - 1} { // by the expiry in the store
				if at := expiry(t, server, strategy, fmt.Sprint("n", i)); at.Before(all.Add(ttl)) {
					t.Errorf("n%d expires at %s, before %s", i, at, all.Add(ttl))
				}
			}
		})
	}
}

// renewedBy is one renewal, of which the network lets most bytes through. If that is not enough,
// its time is over after the answers have had time to come, and it is not whole.
func renewedBy(t *testing.T, net *faultnet.Proxy, s driver.Session, most int64, wait time.Duration) (granted time.Duration, err error, whole bool) {
	net.Set(faultnet.Up, faultnet.Rule{Most: most})
	before := net.Stats().Up.Delivered
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if net.WaitFor(ctx, func(s faultnet.Stats) bool { return s.Up.Delivered-before >= most && s.Up.Waiting() > 0 }) == nil {
			time.Sleep(wait)
			cancel()
		}
	})
	granted, err = s.KeepAlive(ctx)
	whole = ctx.Err() == nil
	cancel()
	wg.Wait()
	return granted, err, whole
}

// expiry is when the store forgets an uncontended lock, at the latest.
func expiry(t *testing.T, server *backends.Redis, strategy, name string) time.Time {
	t.Helper()
	if strategy != "queue" {
		ttl := left(t, server, name) // read before the clock
		return time.Now().Add(ttl + time.Millisecond)
	}
	one := strings.Fields(do(t, server, "HGET", "hasp:{"+name+"}", "one"))
	us, err := strconv.ParseInt(one[2], 10, 64)
	must(t, err)
	return time.UnixMicro(us)
}

// throttle passes perSecond bytes a second to the server, with timers of any precision: the slices
// are adjusted to the measured rate. It returns the rate at the times at which something waited for
// the network.
func throttle(ctx context.Context, net *faultnet.Proxy, perSecond int64) (measured int64) {
	const step = 250 * time.Millisecond
	slice, passed, busy := perSecond/500, int64(0), time.Duration(1)
	for before, at := net.Stats().Up, time.Now(); ctx.Err() == nil; time.Sleep(step) {
		now := net.Stats().Up
		rate := (now.Delivered - before.Delivered) * int64(time.Second) / max(int64(time.Since(at)), 1)
		if now.Waiting() > 0 {
			passed, busy = passed+now.Delivered-before.Delivered, busy+time.Since(at)
		}
		if now.Waiting() > 0 && rate > 0 { // otherwise the network was not the slow part
			slice = min(max(slice*perSecond/rate, slice/2, 10), slice*2)
		}
		net.Set(faultnet.Up, faultnet.Rule{Slice: int(slice)})
		before, at = now, time.Now()
	}
	net.Set(faultnet.Up, faultnet.Rule{})
	return passed * int64(time.Second) / int64(busy)
}

// One client holds ten thousand locks through a network so slow that renewing all of them takes
// longer than one renewal may: none is lost during several TTLs.
func TestManyHeldThroughSlowNetwork(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	for try := 1; ; try++ {
		asked, got, lost := heldThroughSlowNetwork(t)
		switch {
		case lost == nil || t.Failed():
			return
		case got > asked*9/10:
			t.Fatal(lost)
		case try == 3:
			t.Skipf("inconclusive: 3 times this machine slowed the network down to less than the test does")
		}
		t.Logf("inconclusive: the network passed %d bytes a second, and was to pass %d: %v", got, asked, lost)
	}
}

// lockMany takes n locks, atOnce at a time.
func lockMany(t *testing.T, c *hasp.Client, n, atOnce int) []*hasp.Lease {
	t.Helper()
	leases := make([]*hasp.Lease, n)
	var wg sync.WaitGroup
	for k := range atOnce {
		wg.Go(func() {
			for i := k; i < n; i += atOnce {
				l, err := c.Mutex(fmt.Sprint("n", i)).Lock(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				leases[i] = l
			}
		})
	}
	wg.Wait()
	return leases
}

// heldThroughSlowNetwork returns which rate the network was to have and had, and the first loss.
func heldThroughSlowNetwork(t *testing.T) (asked, got int64, lost error) {
	const n, ttl = 10_000, 45 * time.Second
	net, c, _ := behindProxy(t, ttl)
	leases := lockMany(t, c, n, 16)
	if t.Failed() {
		return 0, 0, nil
	}
	// A renewal has half of the time left, which is 28 % of the TTL. Each of these takes more
	// than a third of it, with about 55 bytes for each lock.
	ctx, cancel := context.WithCancel(t.Context())
	throttled := make(chan int64)
	asked = 55 * n * 100 / int64(ttl/time.Second*35)
	go func() { throttled <- throttle(ctx, net, asked) }()
	for end := time.Now().Add(ttl * 3 / 2); lost == nil && time.Now().Before(end); time.Sleep(ttl / 200) {
		for _, l := range leases {
			if !l.Held() {
				lost = l.Err()
				break
			}
		}
	}
	cancel()
	got = <-throttled
	if err := c.Close(); err != nil { // another try is not to renew these, too
		t.Error(err)
	}
	return asked, got, lost
}

// A stopped node of a cluster costs the locks that it has, and no others: the renewal says which
// are late, and how much time they have left. (All locks of the client were lost.) If the node
// resumes in time, no lock is lost.
func TestRenewalWithoutANode(t *testing.T) {
	testtier.Long(t)
	for _, strategy := range []string{"queue", "setnx"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			cluster := backends.StartRedisCluster(t)
			for _, n := range cluster.Nodes { // no failover
				do(t, n, "CONFIG", "SET", "cluster-node-timeout", "120000")
			}
			b := testkit.Open(t, "redis://"+strings.Join(cluster.Addrs(), ",")+"?strategy="+strategy)
			defer b.Close()
			renewalWithoutANode(t, b, cluster, strategy)
		})
	}
}

// renewalWithoutANode is this test for one backend.
func renewalWithoutANode(t *testing.T, b driver.Backend, cluster *backends.RedisCluster, strategy string) {
	const n, ttl = 600, 2 * time.Minute
	s, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: ttl, Gone: func(id string, err error) { t.Errorf("%s is gone: %v", id, err) }})
	must(t, err)
	at := map[string]int{} // master by ID
	for i := range n {
		r := testkit.Request(fmt.Sprint("n", i))
		key := r.Name
		if strategy == "queue" {
			key = "hasp:{" + r.Name + "}"
		}
		slot, _ := strconv.Atoi(do(t, cluster.Nodes[0], "CLUSTER", "KEYSLOT", key))
		at[r.ID] = slot * 3 / 16384
		if v, err := s.Ticket(r).Enqueue(t.Context()); err != nil || !v.Held {
			t.Fatalf("%+v, %v", v, err)
		}
	}
	_, err = s.KeepAlive(t.Context())
	must(t, err)
	must(t, cluster.Nodes[1].Pause())
	began := time.Now()
	for range 2 { // the second renewal has new connections
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		_, err = s.KeepAlive(ctx)
		cancel()
		var partial *driver.PartialRenewal
		if !errors.As(err, &partial) {
			t.Errorf("%v, want a partial renewal", err)
			break
		}
		if partial.Granted != ttl {
			t.Errorf("the others have been granted %s, want %s", partial.Granted, ttl)
		}
		for id, node := range at {
			left, late := partial.Late[id]
			if late != (node == 1) {
				t.Errorf("%s, of node %d: late is %t", id, node, late)
			}
			if late && (left > ttl || left < ttl-time.Since(began)*2-10*time.Second) {
				t.Errorf("%s has %s left", id, left)
			}
		}
	}
	must(t, cluster.Nodes[1].Resume())
	testkit.Until(t, "a whole renewal, now that the node is back", func() error {
		if granted, err := s.KeepAlive(t.Context()); err != nil || granted != ttl {
			return fmt.Errorf("%s, %v", granted, err)
		}
		return nil
	})
}
