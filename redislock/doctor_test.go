package redislock_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/redislock"
)

func findings(t *testing.T, storeURL string) map[string]driver.Finding {
	t.Helper()
	b := open(t, storeURL)
	defer b.Close()
	return diagnosed(t, b)
}

// diagnosed returns the gravest finding of each subject.
func diagnosed(t *testing.T, b driver.Backend) map[string]driver.Finding {
	t.Helper()
	all, err := b.(driver.Diagnoser).Diagnose(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	bySubject := map[string]driver.Finding{}
	for _, f := range all {
		if old, ok := bySubject[f.Subject]; !ok || old.Level == driver.Info {
			bySubject[f.Subject] = f
		}
		if f.Level != driver.Info && f.Cure == "" {
			t.Errorf("no cure for %+v", f)
		}
	}
	return bySubject
}

func wantFinding(t *testing.T, all map[string]driver.Finding, subject string, level driver.Level, text string) {
	t.Helper()
	if f := all[subject]; f.Level != level || !strings.Contains(f.Text, text) {
		t.Errorf("%s: %+v, want %s with %q", subject, f, level, text)
	}
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{AppendOnly: true, AppendFsync: "always"})
	all := findings(t, server.URL())
	name := "Redis"
	if backends.RedisVersion() == "valkey" {
		name = "Valkey"
	}
	wantFinding(t, all, "version", driver.Info, name)
	wantFinding(t, all, "persistence", driver.Info, "always")
	wantFinding(t, all, "eviction", driver.Info, "noeviction")
	wantFinding(t, all, "clock", driver.Info, "differs")
	wantFinding(t, all, "replicas", driver.Info, "0")
	wantFinding(t, findings(t, server.URL()+"?wait=1"), "replicas", driver.Bad, "wait=1")

	do(t, server, "CONFIG", "SET", "appendfsync", "everysec")
	do(t, server, "CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
	all = findings(t, server.URL())
	wantFinding(t, all, "persistence", driver.Warn, "everysec")
	wantFinding(t, all, "eviction", driver.Warn, "volatile-ttl")
	do(t, server, "CONFIG", "SET", "maxmemory", "100mb")
	wantFinding(t, findings(t, server.URL()), "eviction", driver.Bad, "volatile-ttl")
	do(t, server, "CONFIG", "SET", "appendonly", "no")
	wantFinding(t, findings(t, server.URL()), "persistence", driver.Warn, "no append-only file")
}

func TestDoctorReplication(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	set := noFailover(t, backends.StartRedisSentinel(t))
	_, err := hasp.Open(t.Context(), set.Replica.URL())
	if !errors.Is(err, hasp.ErrInvalidOption) || !strings.Contains(err.Error(), "is a replica") {
		t.Errorf("open of a replica: %v", err)
	}
	// A client of one's own is taken as it is; the doctor then says what is wrong with it.
	own, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{set.Replica.Addr}, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	b, err := redislock.Open(own, nil)
	if err != nil {
		t.Fatal(err)
	}
	wantFinding(t, diagnosed(t, b), "role", driver.Bad, "replica")
	all := findings(t, set.Master.URL())
	wantFinding(t, all, "replicas", driver.Warn, "1 replicas")
	wantFinding(t, findings(t, set.Master.URL()+"?wait=1"), "replicas", driver.Info, "waits for 1")
}

func TestDoctorCluster(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	all := findings(t, "redis://"+strings.Join(backends.SharedRedisCluster(t).Addrs(), ","))
	wantFinding(t, all, "cluster", driver.Info, "ok")
	wantFinding(t, all, "failover", driver.Warn, "asynchronous")
}

// Acquisitions wait for the replica when asked to, and say what is wrong if there is none.
func TestWaitForReplicas(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	set := noFailover(t, backends.StartRedisSentinel(t))
	c := client(t, set.Master.URL()+"?wait=1")
	other := client(t, set.Master.URL()+"?wait=1")
	l := lock(t, c, "a")
	if got := do(t, set.Replica, "HGET", "hasp:{a}", "one"); !strings.HasPrefix(got, l.ID()+" ") {
		t.Error("granted before the replica has it")
	}
	got := waiting(t, other, "a")
	if err := l.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	takes(t, got)
}
