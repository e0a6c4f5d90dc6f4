//go:build unix

package redislock_test

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/history"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// forgetTTL is short, so that many faults fit into a run. A lease that is lost because the machine
// is busy does no harm: it is an ordinary loss.
const forgetTTL = time.Second

// forgets are stores that lose grants which they have confirmed, and how.
var forgets = []struct {
	name  string
	ttl   time.Duration // longer than a failover takes, or nothing held is forgotten
	start func(t *testing.T) (storeURL string, forget func(r *forgetRun))
}{
	{"FLUSHALL", forgetTTL, flushed("FLUSHALL")},
	{"FLUSHDB", forgetTTL, flushed("FLUSHDB")},
	{"debug reload", forgetTTL, flushed("DEBUG", "RELOAD", "NOSAVE")}, // there is no file to load
	{"killed", forgetTTL, func(t *testing.T) (string, func(*forgetRun)) {
		server := backends.StartRedis(t, backends.RedisOptions{})
		return server.URL(), func(*forgetRun) { restarted(t, server) }
	}},
	{"old file", forgetTTL, func(t *testing.T) (string, func(*forgetRun)) {
		server := backends.StartRedis(t, backends.RedisOptions{})
		return server.URL(), func(r *forgetRun) {
			do(t, server, "SAVE")
			r.granted(t, time.Now()) // the file has the holders before these
			restarted(t, server)
		}
	}},
	{"promoted by hand", byHandTTL, promotedByHand},
	{"sentinel", 5 * forgetTTL, sentinelForgets},
	{"cluster", 6 * forgetTTL, clusterForgets},
}

func flushed(command ...string) func(*testing.T) (string, func(*forgetRun)) {
	return func(t *testing.T) (string, func(*forgetRun)) {
		var config []string
		if backends.RedisVersion() != "6.2" {
			config = append(config, "enable-debug-command yes")
		}
		server := backends.StartRedis(t, backends.RedisOptions{Config: config})
		return server.URL(), func(*forgetRun) {
			if _, err := server.Do(command...); err != nil && !strings.Contains(err.Error(), "load the RDB") {
				t.Fatal(err)
			}
		}
	}
}

func restarted(t *testing.T, server *backends.Redis) {
	must(t, server.Kill())
	must(t, server.Restart())
}

// byHandTTL outlasts, on a busy machine too, the promotion and the new connections of the clients:
// a lease that has run out before the promoted server grants has done no harm.
const byHandTTL = 3 * forgetTTL

// promotedByHand is a master and a replica behind one address, which an operator moves. The replica
// is behind by more than a TTL: what it knew has expired, and all who hold are forgotten.
func promotedByHand(t *testing.T) (string, func(*forgetRun)) {
	r := replicated{master: newReplica(t), replica: newReplica(t)}
	follow(t, r.replica, r.master)
	address := testkit.Proxy(t, r.master.Addr)
	return "redis://" + address.Addr(), func(run *forgetRun) {
		r.loseReplica(t)
		time.Sleep(byHandTTL)
		run.halfStopped(t, func() {
			r.failOver(t)
			do(t, r.replica, "REPLICAOF", "NO", "ONE")
			must(t, address.Redirect(r.replica.Addr))
			address.Reset()
		})
		must(t, r.master.Restart())
		r.master, r.replica = r.replica, r.master
		follow(t, r.replica, r.master)
	}
}

func newReplica(t *testing.T) *backends.Redis {
	return backends.StartRedis(t, backends.RedisOptions{Config: []string{"repl-diskless-sync-delay 0"}})
}

func follow(t *testing.T, replica, master *backends.Redis) {
	t.Helper()
	replicaOf(t, replica, master)
	linked(t, replica)
}

func replicaOf(t *testing.T, replica, master *backends.Redis) {
	t.Helper()
	host, port, _ := strings.Cut(master.Addr, ":")
	do(t, replica, "REPLICAOF", host, port)
}

func linked(t *testing.T, replica *backends.Redis) {
	t.Helper()
	testkit.Eventually(t, "the replica", func() bool { return isLinked(replica) })
}

func isLinked(replica *backends.Redis) bool {
	info, err := replica.Do("INFO", "replication")
	return err == nil && strings.Contains(info, "master_link_status:up")
}

func sentinelForgets(t *testing.T) (string, func(*forgetRun)) {
	set := backends.StartRedisSentinel(t)
	r := sentinelSet(set)
	return r.url, func(run *forgetRun) {
		testkit.Eventually(t, "master and replica", func() bool { // on a busy machine they may have changed
			if addr, err := set.CurrentMaster(); err == nil && addr == r.replica.Addr {
				r.master, r.replica = r.replica, r.master
			}
			return isLinked(r.replica)
		})
		r.loseReplica(t)
		run.someGranted(t, mostBehind)
		run.halfStopped(t, func() {
			r.failOver(t)
			testkit.Eventually(t, "the other master", func() bool {
				addr, err := set.CurrentMaster()
				return err == nil && addr == r.replica.Addr
			})
		})
		must(t, r.master.Restart())
		r.master, r.replica = r.replica, r.master
		if addr, err := set.CurrentMaster(); err == nil && addr == r.master.Addr {
			replicaOf(t, r.replica, r.master) // the sentinels would do it after some seconds
		}
	}
}

// clusterForgets fails over the shard of the mutex.
func clusterForgets(t *testing.T) (string, func(*forgetRun)) {
	r := clusterShard(t, backends.StartRedisCluster(t))
	return r.url, func(run *forgetRun) {
		r.loseReplica(t)
		run.someGranted(t, mostBehind)
		run.halfStopped(t, func() {
			r.failOver(t)
			testkit.Eventually(t, "the other master", func() bool {
				info, err := r.replica.Do("INFO", "replication")
				return err == nil && strings.Contains(info, "role:master")
			})
		})
		must(t, r.master.Restart())
		r.master, r.replica = r.replica, r.master
		linked(t, r.replica)
	}
}

// No server that forgets its grants lets two clients hold: six processes contend for a mutex, a
// read-write lock and a semaphore,
// and the server forgets again and again. Without the quarantine each way of forgetting is caught.
//
// HASP_FORGETS is how often each one forgets (default 3).
func TestForgetting(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	times := 3
	if text := os.Getenv("HASP_FORGETS"); text != "" {
		n, err := strconv.Atoi(text)
		must(t, err)
		times = n
	}
	for _, f := range forgets {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			storeURL, forget := f.start(t)
			r := startForgetRun(t, storeURL, f.ttl)
			r.granted(t, time.Now())
			var slowest time.Duration
			// A few faults may each meet holders that have just released: it goes on until a lease
			// was lost.
			for n := 0; n < times || n < times+10 && r.lost(t) == 0; n++ {
				time.Sleep(rand.N(f.ttl))
				forget(r)
				slowest = max(slowest, r.granted(t, time.Now()))
			}
			r.end()
			found, stale, lost := r.check(t)
			t.Logf("%d times, %d leases lost, %d stale uses, the next grants after at most %s", times, lost, stale, slowest)
			for _, v := range found[:min(len(found), 5)] {
				t.Error(v)
			}
			if lost == 0 || stale > 0 {
				t.Errorf("%d leases lost, %d stale uses", lost, stale)
			}
		})
	}
}

// The control.
func TestForgettingWithoutQuarantine(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	for _, f := range forgets {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			storeURL, forget := f.start(t)
			r := startForgetRun(t, with(storeURL, "quarantine=off"), f.ttl)
			r.granted(t, time.Now())
			caught := []history.Violation{}
			const most = 20
			n := 0
			for ; len(caught) == 0 && n < most; n++ {
				time.Sleep(rand.N(f.ttl))
				forget(r)
				r.granted(t, time.Now())
				caught, _, _ = r.check(t)
			}
			t.Logf("caught after %d of %d", n, most)
			if len(caught) == 0 {
				t.Errorf("the server has forgotten grants %d times, and the checks have found nothing", most)
			}
		})
	}
}
