package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
)

// A renewal that takes longer than it has time keeps what it has achieved: the next one goes on
// with those that were renewed longest ago, and what is returned is never more than any entry
// has left. (All of it was lost, again and again, until all entries were.) The network lets
// through so little that one call is never enough.
func TestRenewalGoesOn(t *testing.T) {
	for _, strategy := range []string{"queue", "setnx", "redisson"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			server := backends.StartRedis(t, backends.RedisOptions{})
			net, err := faultnet.New(context.WithoutCancel(t.Context()), server.Addr)
			must(t, err)
			t.Cleanup(net.Close)
			const n, ttl, bound = 3000, 10 * time.Minute, 300 * time.Millisecond
			b := open(t, "redis://"+net.Addr()+"?strategy="+strategy)
			gone := make(chan string, n)
			s, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: ttl, Gone: func(id string, _ error) { gone <- id }})
			must(t, err)
			defer b.Close()
			for i := range n {
				if v, err := s.Ticket(request(fmt.Sprint("n", i))).Enqueue(t.Context()); err != nil || !v.Held {
					t.Fatalf("%+v, %v", v, err)
				}
			}
			all := time.Now() // each must be renewed after this moment
			net.Set(faultnet.Up, faultnet.Rule{Slice: 100})
			cut := 0
			for end := time.Now().Add(3 * slack); ; {
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), bound)
				granted, err := s.KeepAlive(ctx)
				if ctx.Err() != nil {
					cut++
				}
				cancel()
				if granted > ttl {
					t.Fatalf("granted %s", granted)
				}
				// What is left counts from before the call: so old is the oldest renewal.
				if err == nil && began.Add(granted-ttl).After(all) {
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
			for _, i := range []int{0, 1, n / 2, n - 1} { // by the store's own word
				if at := expiry(t, server, strategy, fmt.Sprint("n", i)); at.Before(all.Add(ttl)) {
					t.Errorf("n%d expires at %s, before %s", i, at, all.Add(ttl))
				}
			}
			net.Set(faultnet.Up, faultnet.Rule{})
		})
	}
}

// expiry is when the store will have forgotten a lock that nobody stands beside, at the latest.
func expiry(t *testing.T, server *backends.Redis, strategy, name string) time.Time {
	t.Helper()
	if strategy != "queue" {
		return time.Now().Add(left(t, server, name) + time.Millisecond)
	}
	one := strings.Fields(do(t, server, "HGET", "hasp:{"+name+"}", "one"))
	us, err := strconv.ParseInt(one[1], 10, 64)
	must(t, err)
	return time.UnixMicro(us)
}

// Ten thousand locks of one client, held through a network so slow that renewing all of them
// takes longer than one renewal may: none is lost for as long as it takes, several TTLs.
func TestManyHeldThroughSlowNetwork(t *testing.T) {
	t.Parallel()
	net, c, _ := behindProxy(t, calm)
	const n = 10_000
	leases := make([]*hasp.Lease, n)
	var wg sync.WaitGroup
	for k := range 16 {
		wg.Go(func() {
			for i := k; i < n; i += 16 {
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
	if t.Failed() {
		return
	}
	before := net.Stats().Up.Delivered
	renewed(t, leases[0]) // the next is a third of the TTL away
	time.Sleep(calm / 24)
	one := net.Stats().Up.Delivered - before // bytes of a renewal
	// A renewal has half of what is left: less than half of the TTL. So much passes in that time,
	// and all of it in less than the TTL less the guard.
	perSecond := one * 100 / int64(calm/time.Second*55)
	rule := faultnet.Rule{Slice: int(perSecond / 800)} // about 800 slices pass in a second
	net.Set(faultnet.Up, rule)
	for end := time.Now().Add(3 * calm); time.Now().Before(end); time.Sleep(calm / 100) {
		for _, l := range leases {
			if !l.Held() {
				t.Fatal(l.Err())
			}
		}
	}
	net.Set(faultnet.Up, faultnet.Rule{})
}

// A node of a cluster that stands still costs the locks that it has, and no others: the renewal
// says which are late, and what they have left. (All locks of the client were lost.) When it
// goes on in time, nothing is.
func TestRenewalWithoutANode(t *testing.T) {
	for _, strategy := range []string{"queue", "setnx"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			cluster := backends.StartRedisCluster(t)
			for _, n := range cluster.Nodes { // no failover
				do(t, n, "CONFIG", "SET", "cluster-node-timeout", "120000")
			}
			b := open(t, "redis://"+strings.Join(cluster.Addrs(), ",")+"?strategy="+strategy)
			defer b.Close()
			renewalWithoutANode(t, b, cluster, strategy)
		})
	}
}

// renewalWithoutANode is that test for one backend.
func renewalWithoutANode(t *testing.T, b driver.Backend, cluster *backends.RedisCluster, strategy string) {
	const n, ttl = 600, 2 * time.Minute
	s, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: ttl, Gone: func(id string, err error) { t.Errorf("%s is gone: %v", id, err) }})
	must(t, err)
	at := map[string]int{} // master by ID
	for i := range n {
		r := request(fmt.Sprint("n", i))
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
	for range 2 { // the second has new connections
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
	for end := time.Now().Add(slack); ; time.Sleep(100 * time.Millisecond) {
		if granted, err := s.KeepAlive(t.Context()); err == nil && granted == ttl {
			break
		} else if time.Now().After(end) {
			t.Fatalf("the node is back, and the renewal says %s, %v", granted, err)
		}
	}
}
