package redislock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/redislock"
)

func findings(t *testing.T, storeURL string) map[string]driver.Finding {
	t.Helper()
	b := testkit.Open(t, storeURL)
	defer b.Close()
	return testkit.Findings(t, b)
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{AppendOnly: true, AppendFsync: "always"})
	all := findings(t, server.URL())
	name := "Redis"
	if backends.RedisVersion() == "valkey" {
		name = "Valkey"
	}
	testkit.WantFinding(t, all, "version", driver.Info, name)
	testkit.WantFinding(t, all, "persistence", driver.Info, "always")
	testkit.WantFinding(t, all, "eviction", driver.Info, "noeviction")
	testkit.WantFinding(t, all, "clock", driver.Info, "differs")
	testkit.WantFinding(t, all, "replicas", driver.Info, "0")
	testkit.WantFinding(t, findings(t, server.URL()+"?wait=1"), "replicas", driver.Bad, "wait=1")

	do(t, server, "CONFIG", "SET", "appendfsync", "everysec")
	do(t, server, "CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
	all = findings(t, server.URL())
	testkit.WantFinding(t, all, "persistence", driver.Warn, "everysec")
	testkit.WantFinding(t, all, "eviction", driver.Warn, "volatile-ttl")
	do(t, server, "CONFIG", "SET", "maxmemory", "100mb")
	testkit.WantFinding(t, findings(t, server.URL()), "eviction", driver.Bad, "volatile-ttl")
	do(t, server, "CONFIG", "SET", "appendonly", "no")
	testkit.WantFinding(t, findings(t, server.URL()), "persistence", driver.Warn, "no append-only file")
}

// A client's observers are told that the server may evict held locks, and of nothing where it does
// not.
func TestEvictionIsWarned(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	for _, strategy := range []string{"queue", "setnx", "redisson"} {
		for _, policy := range []string{"noeviction", "allkeys-lru"} {
			do(t, server, "CONFIG", "SET", "maxmemory-policy", policy)
			do(t, server, "CONFIG", "SET", "maxmemory", "100mb")
			warned := make(chan error, 10)
			c := client(t, server.URL()+"?strategy="+strategy, hasp.WithObserver(testkit.Observer(func(e hasp.Event) {
				if e.Kind == hasp.EventWarning {
					warned <- e.Err
				}
			})))
			if policy == "noeviction" {
				must(t, c.Close()) // waits for what it does in the background
				if len(warned) > 0 {
					t.Errorf("%s: %v", strategy, <-warned)
				}
				continue
			}
			select {
			case err := <-warned:
				if !strings.Contains(err.Error(), "allkeys-lru") || !strings.Contains(err.Error(), "noeviction") {
					t.Errorf("%s: %v", strategy, err)
				}
			case <-time.After(slack):
				t.Errorf("%s: no warning", strategy)
			}
		}
	}
}

func TestDoctorReplication(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	set := noFailover(t, backends.StartRedisSentinel(t))
	_, err := hasp.Open(t.Context(), set.Replica.URL())
	if !errors.Is(err, hasp.ErrInvalid) || !strings.Contains(err.Error(), "is a replica") {
		t.Errorf("open of a replica: %v", err)
	}
	// A client of one's own is taken as it is; the doctor then says what is wrong with it.
	own, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{set.Replica.Addr}, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	b, err := redislock.New(own, nil)
	if err != nil {
		t.Fatal(err)
	}
	testkit.WantFinding(t, testkit.Findings(t, b), "role", driver.Bad, "replica")
	all := findings(t, set.Master.URL())
	testkit.WantFinding(t, all, "replicas", driver.Warn, "1 replicas")
	testkit.WantFinding(t, findings(t, set.Master.URL()+"?wait=1"), "replicas", driver.Info, "waits for 1")
}

func TestDoctorCluster(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	all := findings(t, "redis://"+strings.Join(backends.SharedRedisCluster(t).Addrs(), ","))
	testkit.WantFinding(t, all, "cluster", driver.Info, "ok")
	testkit.WantFinding(t, all, "failover", driver.Warn, "cut off")
}

// Acquisitions wait for the replica when asked to, and say what is wrong if there is none.
func TestWaitForReplicas(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	set := noFailover(t, backends.StartRedisSentinel(t))
	c := client(t, set.Master.URL()+"?wait=1")
	other := client(t, set.Master.URL()+"?wait=1")
	l := testkit.Lock(t, c, "a")
	if got := do(t, set.Replica, "HGET", "hasp:{a}", "one"); !strings.HasPrefix(got, l.ID()+" ") {
		t.Error("granted before the replica has it")
	}
	got := testkit.Queued(t, other, "a")
	if err := l.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	testkit.Granted(t, got)
}
