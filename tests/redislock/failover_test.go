package redislock_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/history"
	"github.com/hasplock/hasp/internal/recordedhold"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/tests/internal/linear"
)

// replicated is a store in which a master can be replaced by its replica.
type replicated struct {
	url             string
	master, replica *backends.Redis // those that have the name "a"
}

// with returns the URL with a further parameter.
func (r replicated) with(parameter string) string { return with(r.url, parameter) }

func with(storeURL, parameter string) string {
	if strings.Contains(storeURL, "?") {
		return storeURL + "&" + parameter
	}
	return storeURL + "?" + parameter
}

// loseReplica cuts the replica off, so that it knows nothing of what the master does from
// here on. It is stopped first: it would be back at once. What was on the way to it would
// be in its socket, hence the master closes that.
func (r replicated) loseReplica(t *testing.T) {
	t.Helper()
	linked(t, r.replica)
	if err := r.replica.Pause(); err != nil {
		t.Fatal(err)
	}
	if n := do(t, r.master, "CLIENT", "KILL", "TYPE", "replica"); n != "1" {
		t.Fatalf("the master had %s replicas", n)
	}
}

// failOver kills the master and lets the replica go on, which is then promoted.
func (r replicated) failOver(t *testing.T) {
	t.Helper()
	if err := r.master.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := r.replica.Resume(); err != nil {
		t.Fatal(err)
	}
}

// failovers runs a test on a separate Sentinel set and on a separate cluster.
func failovers(t *testing.T, test func(t *testing.T, r replicated)) {
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		test(t, sentinelSet(backends.StartRedisSentinel(t)))
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		test(t, clusterShard(t, backends.StartRedisCluster(t)))
	})
}

func sentinelSet(set *backends.RedisSentinel) replicated {
	var sentinels []string
	for _, s := range set.Sentinels {
		sentinels = append(sentinels, s.Addr)
	}
	return replicated{
		url:    "redis://" + strings.Join(sentinels, ",") + "?sentinel=" + set.MasterName,
		master: set.Master, replica: set.Replica,
	}
}

// clusterShard is the shard of the name "a".
func clusterShard(t *testing.T, cluster *backends.RedisCluster) replicated {
	slot, err := strconv.Atoi(do(t, cluster.Nodes[0], "CLUSTER", "KEYSLOT", "hasp:{a}"))
	must(t, err)
	i := slot * 3 / 16384
	return replicated{
		url:    "redis://" + strings.Join(cluster.Addrs(), ","),
		master: cluster.Nodes[i], replica: cluster.Nodes[3+i],
	}
}

// What the replica has confirmed survives the failover.
func TestFailoverKeeps(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	failovers(t, func(t *testing.T, r replicated) {
		c := client(t, r.with("wait=1"), hasp.WithTTL(slack)) // as long as the next client waits
		l := testkit.Lock(t, c, "a")
		r.failOver(t)
		ctx, cancel := context.WithTimeout(t.Context(), 3*slack)
		defer cancel()
		if err := l.Release(ctx); err != nil { // nil: the promoted replica had the entry
			t.Errorf("release after the failover: %v", err)
		}
		// No replica is left that could confirm, so the next client does not ask for it.
		if next := testkit.LockDespiteErrors(t, client(t, r.url), "a"); next.Token() <= l.Token() {
			t.Errorf("token %d after %d", next.Token(), l.Token())
		}
	})
}

// A grant that the promoted replica does not have: the replica grants nothing until that lease is
// over, and the first client learns of its loss before.
func TestFailoverForgets(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	failovers(t, func(t *testing.T, r replicated) {
		c, other := client(t, r.url), client(t, r.url)
		must(t, testkit.Lock(t, other, "a").Release(t.Context()))
		must(t, testkit.Lock(t, c, "a").Release(t.Context())) // it listens by now, at some node
		r.loseReplica(t)
		l := testkit.Lock(t, c, "a")
		r.failOver(t)
		next := testkit.LockDespiteErrors(t, other, "a")
		if l.Held() {
			t.Error("two believe that they hold")
		}
		if next.Token() <= l.Token() {
			t.Errorf("token %d after %d", next.Token(), l.Token())
		}
		// Denied by the new master, or expired if that takes longer than the deadline.
		testkit.Lost(t, l, hasp.ReasonDenied, hasp.ReasonExpired)
		if err := l.Release(t.Context()); !errors.Is(err, hasp.ErrLost) {
			t.Errorf("release of a forgotten lock: %v", err)
		}
		if !next.Held() {
			t.Errorf("the release of the old grant has taken the new one: %v", next.Err())
		}
	})
}

// With wait=1 there is no such grant: the same faults, and no client was told that it holds. This
// test and the one above are each other's control.
func TestFailoverUnconfirmed(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	failovers(t, func(t *testing.T, r replicated) {
		c := client(t, r.with("wait=1"))
		if err := testkit.Lock(t, c, "a").Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.loseReplica(t)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if l, err := c.Mutex("a").Lock(ctx); err == nil {
			t.Errorf("granted with token %d, and the replica has not confirmed it", l.Token())
		}
		if err := r.replica.Resume(); err != nil {
			t.Fatal(err)
		}
		testkit.LockDespiteErrors(t, c, "a") // the replica is back
	})
}

// A master that is cut off from its replica, and not from some of its clients, goes on while the
// replica is promoted. With wait=1 its clients' locks end before the new master grants any; that
// test and the one with wait=0 are each other's control.
func TestPartitionedMaster(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	for _, wait := range []string{"wait=1", "wait=0"} {
		t.Run(wait, func(t *testing.T) {
			t.Parallel()
			master, replica, third := newReplica(t), newReplica(t), newReplica(t)
			link, address := testkit.Proxy(t, master.Addr), testkit.Proxy(t, master.Addr)
			host, port, _ := strings.Cut(link.Addr(), ":")
			do(t, replica, "REPLICAOF", host, port)
			linked(t, replica)
			follow(t, third, replica) // the new master's replica
			w := recordedhold.Workload{Names: []string{"a", "b"}, TTL: T, Rec: history.New()}
			for _, addr := range []string{master.Addr, master.Addr, address.Addr(), address.Addr()} {
				w.Clients = append(w.Clients, client(t, "redis://"+addr+"?"+wait, hasp.WithTTL(T)))
			}
			ctx, cancel := context.WithCancel(t.Context())
			workers := w.Run(ctx)
			time.Sleep(2 * T)
			link.Partition()
			do(t, replica, "REPLICAOF", "NO", "ONE")
			must(t, address.Redirect(replica.Addr))
			address.Reset()
			time.Sleep(4 * T)
			cancel()
			workers.Wait()
			h, err := w.Rec.History()
			must(t, err)
			switch found := history.Exclusion(h); {
			case wait == "wait=1":
				linear.Require(t, h, linear.Options{Fencing: true})
			case len(found) == 0:
				t.Error("the old master's locks and the new one's have passed the check")
			}
		})
	}
}

// A node that hangs keeps no client from the names of the others, although a session listens at
// any one of the nodes. Eight sessions choose among six.
func TestClusterNodeHangs(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	cluster := backends.StartRedisCluster(t)
	var clients []*hasp.Client
	for range 8 {
		clients = append(clients, client(t, "redis://"+strings.Join(cluster.Addrs(), ","), hasp.WithTTL(slack)))
	}
	must(t, cluster.Nodes[5].Pause()) // a replica: every slot has its master
	for _, c := range clients {
		must(t, testkit.Lock(t, c, "a").Release(t.Context()))
	}
	must(t, cluster.Nodes[5].Resume())
}
