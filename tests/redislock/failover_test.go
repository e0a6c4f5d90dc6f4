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
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// replicated is a store in which a master can be replaced by its replica.
type replicated struct {
	url             string
	master, replica *backends.Redis // those that have the name "a"
}

// with returns the URL with a further parameter.
func (r replicated) with(parameter string) string {
	if strings.Contains(r.url, "?") {
		return r.url + "&" + parameter
	}
	return r.url + "?" + parameter
}

// loseReplica cuts the replica off, so that it knows nothing of what the master does from
// here on. It is stopped first: it would be back at once. What was on the way to it would
// be in its socket, hence the master closes that.
func (r replicated) loseReplica(t *testing.T) {
	t.Helper()
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
		set := backends.StartRedisSentinel(t)
		var sentinels []string
		for _, s := range set.Sentinels {
			sentinels = append(sentinels, s.Addr)
		}
		test(t, replicated{
			url:    "redis://" + strings.Join(sentinels, ",") + "?sentinel=" + set.MasterName,
			master: set.Master, replica: set.Replica,
		})
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		cluster := backends.StartRedisCluster(t)
		slot, err := strconv.Atoi(do(t, cluster.Nodes[0], "CLUSTER", "KEYSLOT", "hasp:{a}"))
		if err != nil {
			t.Fatal(err)
		}
		i := slot * 3 / 16384
		test(t, replicated{
			url:    "redis://" + strings.Join(cluster.Addrs(), ","),
			master: cluster.Nodes[i], replica: cluster.Nodes[3+i],
		})
	})
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
