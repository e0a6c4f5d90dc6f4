package redislock_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// A replica follows the promoted master, and comes back to the old one: that can have its grants
// confirmed again, and lacks those of the other. A client that the other has told says so, also if
// the mark of the old master was changed later. (A longer TTL had made it the newer one.)
func TestReplicaComesBack(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	for _, quarantine := range []string{"on", "off"} {
		t.Run(quarantine, func(t *testing.T) {
			t.Parallel()
			const ttl = calm / 2
			old, promoted, third := newReplica(t), newReplica(t), newReplica(t)
			address := testkit.Proxy(t, old.Addr)
			parameters := "?wait=1&quarantine=" + quarantine
			second := client(t, "redis://"+address.Addr()+parameters, hasp.WithTTL(ttl))
			follow(t, promoted, old)
			follow(t, third, old)
			testkit.Release(t, testkit.Lock(t, second, "a"))
			do(t, promoted, "REPLICAOF", "NO", "ONE")
			follow(t, third, promoted)
			must(t, address.Redirect(promoted.Addr))
			address.Reset()
			first := client(t, promoted.URL()+parameters, hasp.WithTTL(ttl))
			testkit.Release(t, testkit.LockDespiteErrors(t, second, "a"))
			long := client(t, old.URL()+parameters, hasp.WithTTL(2*ttl))
			if _, err := long.Mutex("b").TryLock(t.Context()); err == nil {
				t.Fatal("confirmed without replicas")
			}
			notTwo(t, first, second, quarantine, func() {
				follow(t, third, old)
				must(t, address.Redirect(old.Addr))
				address.Reset()
			})
		})
	}
}

// A promoted master without replicas draws another replication id after repl-backlog-ttl, and
// forgets that it was promoted. The TTL is longer than that here.
func TestPromotionIsForgotten(t *testing.T) {
	t.Parallel()
	for _, strategy := range strategies {
		for _, quarantine := range []string{"on", "off"} {
			t.Run(strategy+"/"+quarantine, func(t *testing.T) {
				t.Parallel()
				const ttl = calm / 2
				config := backends.RedisOptions{Config: []string{"repl-diskless-sync-delay 0", "repl-backlog-ttl 1"}}
				old, promoted := newReplica(t), backends.StartRedis(t, config)
				address := testkit.Proxy(t, old.Addr)
				storeURL := "redis://" + address.Addr() + "?strategy=" + strategy + "&quarantine=" + quarantine
				first, second := client(t, storeURL, hasp.WithTTL(ttl)), client(t, storeURL, hasp.WithTTL(ttl))
				testkit.Release(t, testkit.Lock(t, second, "a"))
				follow(t, promoted, old)
				upFor(t, promoted, ttl)
				do(t, promoted, "REPLICAOF", "NO", "ONE")
				testkit.Eventually(t, "the end of the backlog", func() bool {
					return strings.Contains(do(t, promoted, "INFO", "replication"), "second_repl_offset:-1")
				})
				notTwo(t, first, second, quarantine, func() {
					must(t, address.Redirect(promoted.Addr))
					address.Reset()
				})
			})
		}
	}
}

// In a cluster each slot has a mark. After CONFIG RESETSTAT, which hides what was done before, the
// first new slot is closed for a TTL; a client that has used the server for longer than that since
// then knows that no other has lost anything. A new client does not.
func TestNewSlotsAfterResetStat(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	for _, parameters := range []string{"?strategy=queue", "?strategy=setnx", "?wait=1"} {
		t.Run(parameters, func(t *testing.T) {
			t.Parallel()
			cluster := backends.StartRedisCluster(t)
			for _, n := range cluster.Nodes {
				if strings.Contains(do(t, n, "INFO", "replication"), "role:master") {
					do(t, n, "FLUSHALL") // which removes the operator's word that it is new
				}
				do(t, n, "CONFIG", "RESETSTAT")
			}
			storeURL := "redis://" + cluster.Addrs()[0] + "," + cluster.Addrs()[1] + parameters
			c := client(t, storeURL, hasp.WithTTL(T))
			wantTry(t, c, "a", hasp.ErrQuarantine)
			for _, name := range []string{"a", "b", "c"} { // one of each master
				testkit.UseDespiteErrors(t, c, name)
			}
			time.Sleep(T + T/2)
			for i := range 20 {
				wantTry(t, c, fmt.Sprint("new", i), nil)
			}
			if _, err := client(t, storeURL, hasp.WithTTL(T)).Mutex("other").TryLock(t.Context()); !errors.Is(err, hasp.ErrQuarantine) {
				t.Errorf("a new client: %v", err)
			}
		})
	}
}

// A slot that has moved is closed once, for a TTL: its old server may have lost something just
// before.
func TestMovedSlotClosesOnce(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	for _, strategy := range strategies {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			cluster := backends.StartRedisCluster(t)
			for _, n := range cluster.Nodes {
				do(t, n, "CONFIG", "SET", "cluster-node-timeout", "120000")
			}
			storeURL := "redis://" + cluster.Addrs()[0] + "," + cluster.Addrs()[1] + "?strategy=" + strategy
			told, idle := client(t, storeURL, hasp.WithTTL(T)), client(t, storeURL, hasp.WithTTL(T))
			for _, c := range []*hasp.Client{told, idle} {
				testkit.Release(t, testkit.Lock(t, c, "a"))
			}
			m := move(t, cluster, "hasp:{a}")
			if strategy != "queue" {
				m = move(t, cluster, "a")
			}
			m.keys(t)
			m.end(t)
			wantTry(t, told, "a", hasp.ErrQuarantine)
			began := time.Now()
			testkit.Release(t, testkit.Lock(t, told, "a"))
			t.Logf("closed for %s", time.Since(began))
			for _, c := range []*hasp.Client{told, idle, client(t, storeURL, hasp.WithTTL(T))} {
				wantTry(t, c, "a", nil)
			}
		})
	}
}

// A slot whose keys were lost, the mark among them, moves to a master that has lost nothing and is up
// for long: it is closed there, too.
func TestSlotMovesWithoutItsKeys(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	if backends.RedisVersion() == "6.2" {
		t.Skip("its statistics do not tell CLUSTER SETSLOT from CLUSTER SLOTS")
	}
	cluster := backends.StartRedisCluster(t)
	for _, n := range cluster.Nodes {
		do(t, n, "CONFIG", "SET", "cluster-node-timeout", "120000")
	}
	storeURL := "redis://" + strings.Join(cluster.Addrs(), ",")
	holder := client(t, storeURL, hasp.WithTTL(T))
	testkit.Lock(t, holder, "a")
	m := move(t, cluster, "hasp:{a}")
	upFor(t, m.to, T)
	do(t, m.from, "FLUSHALL")
	m.end(t)
	wantTry(t, client(t, storeURL, hasp.WithTTL(T)), "a", hasp.ErrQuarantine)
}
