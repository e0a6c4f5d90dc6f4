package redislock_test

import (
	"context"
	"strings"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// moving is a slot of a cluster on its way from one master to another.
type moving struct {
	slot     string
	from, to *backends.Redis
	ids      [2]string
}

// move opens the slot at both ends, as redis-cli --cluster reshard does before it moves the keys.
func move(t *testing.T, cluster *backends.RedisCluster, key string) *moving {
	t.Helper()
	m := &moving{slot: do(t, cluster.Nodes[0], "CLUSTER", "KEYSLOT", key)}
	for i, n := range cluster.Nodes[:3] {
		if _, err := n.Do("GET", key); err == nil || !strings.HasPrefix(err.Error(), "MOVED") {
			m.from, m.to = n, cluster.Nodes[(i+1)%3]
		}
	}
	m.ids = [2]string{do(t, m.from, "CLUSTER", "MYID"), do(t, m.to, "CLUSTER", "MYID")}
	do(t, m.to, "CLUSTER", "SETSLOT", m.slot, "IMPORTING", m.ids[0])
	do(t, m.from, "CLUSTER", "SETSLOT", m.slot, "MIGRATING", m.ids[1])
	return m
}

// keys moves the present keys.
func (m *moving) keys(t *testing.T) {
	t.Helper()
	m.some(t, func(string) bool { return true })
}

// some moves some of the present keys, and returns how many.
func (m *moving) some(t *testing.T, which func(key string) bool) (n int) {
	t.Helper()
	host, port, _ := strings.Cut(m.to.Addr, ":")
	for _, key := range strings.Fields(do(t, m.from, "CLUSTER", "GETKEYSINSLOT", m.slot, "100")) {
		if which(key) {
			do(t, m.from, "MIGRATE", host, port, key, "0", "5000")
			n++
		}
	}
	return n
}

// end gives the slot to its new master.
func (m *moving) end(t *testing.T) {
	t.Helper()
	m.keys(t)
	do(t, m.to, "CLUSTER", "SETSLOT", m.slot, "NODE", m.ids[1])
	do(t, m.from, "CLUSTER", "SETSLOT", m.slot, "NODE", m.ids[1])
}

// A slot moves to another master, and is open for a while, as with many keys. Held locks stay
// held. Requests that a server cannot serve in between, because a name's keys are on both servers
// (TRYAGAIN), are repeated until it can.
func TestSlotMoves(t *testing.T) {
	testtier.Long(t)
	for _, strategy := range []string{"queue", "setnx", "redisson"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			cluster := backends.StartRedisCluster(t)
			for _, n := range cluster.Nodes {
				do(t, n, "CONFIG", "SET", "cluster-node-timeout", "120000")
			}
			storeURL := "redis://" + strings.Join(cluster.Addrs(), ",") + "?strategy=" + strategy
			c, other := client(t, storeURL), client(t, storeURL)
			key := "a"
			if strategy == "queue" {
				key = "hasp:{a}"
			}
			must(t, testkit.Lock(t, c, "a").Release(t.Context())) // it has been used
			kept, l := testkit.Lock(t, c, "x{a}"), testkit.Lock(t, c, "y{a}")
			m := move(t, cluster, key)
			type result struct {
				what string
				err  error
			}
			done := make(chan result, 3)
			ctx, cancel := context.WithTimeout(t.Context(), 2*slack)
			defer cancel()
			var got *hasp.Lease
			go func() {
				var err error
				got, err = other.Mutex("a").Lock(ctx)
				done <- result{"lock", err}
			}()
			go func() { done <- result{"release", l.Release(ctx)} }()
			go func() {
				_, err := other.Mutex("new{a}").Lock(ctx)
				done <- result{"lock of a new name", err}
			}()
			renewed(t, kept) // at the open slot
			t.Logf("%d requests done while the slot was open", len(done))
			m.keys(t)
			renewed(t, kept)
			t.Logf("%d when the keys had moved", len(done))
			m.end(t)
			for range 3 {
				if r := <-done; r.err != nil {
					t.Errorf("%s: %v", r.what, r.err)
				}
			}
			renewed(t, kept)
			must(t, kept.Release(t.Context()))
			must(t, got.Release(t.Context()))
		})
	}
}

// While the marks of a slot are on one server and the locks on the other, held locks are renewed,
// in either order. It takes as long as the slot is open.
func TestSlotMovesMarksApart(t *testing.T) {
	testtier.Long(t)
	for _, first := range []string{"marks", "locks"} {
		t.Run(first, func(t *testing.T) {
			t.Parallel()
			cluster := backends.StartRedisCluster(t)
			for _, n := range cluster.Nodes {
				do(t, n, "CONFIG", "SET", "cluster-node-timeout", "120000")
			}
			var kept []*hasp.Lease
			for strategy, name := range map[string]string{"queue": "a", "setnx": "s{a}", "redisson": "r{a}"} { // of one slot
				c := client(t, "redis://"+strings.Join(cluster.Addrs(), ",")+"?strategy="+strategy)
				kept = append(kept, testkit.Lock(t, c, name))
			}
			m := move(t, cluster, "a")
			moves := func(key string) bool { return strings.Contains(key, "mark:{") == (first == "marks") }
			if n := m.some(t, moves); n < 2 {
				t.Fatalf("%d keys have moved", n)
			}
			for _, l := range kept {
				before := l.Deadline()
				testkit.Eventually(t, "renewals for a TTL", func() bool { return !l.Held() || l.Deadline().Sub(before) > calm })
				if !l.Held() {
					t.Errorf("%s: %v", l.Name(), l.Err())
				}
			}
			m.end(t)
			for _, l := range kept {
				testkit.Release(t, l)
			}
		})
	}
}
