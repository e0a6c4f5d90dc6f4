package redislock_test

import (
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// T is the TTL of clients whose leases are to expire, and calm of those whose leases must last
// however busy the machine is. slack is how long a test waits for an event that must come: only
// a fault takes that long.
const (
	T     = 2 * time.Second
	calm  = 12 * time.Second
	slack = 30 * time.Second
)

func client(t *testing.T, storeURL string, opts ...hasp.Option) *hasp.Client {
	t.Helper()
	return testkit.Client(t, storeURL, append([]hasp.Option{hasp.WithTTL(calm)}, opts...)...)
}

// renewed waits for a renewal of the lease.
func renewed(t *testing.T, l *hasp.Lease) {
	t.Helper()
	before := l.Deadline()
	for l.Held() && l.Deadline().Sub(before) < calm/10 {
		time.Sleep(20 * time.Millisecond)
	}
	if !l.Held() {
		t.Fatal(l.Err())
	}
}

func do(t *testing.T, server *backends.Redis, args ...string) string {
	t.Helper()
	out, err := server.Do(args...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return out
}

// noFailover prevents a failover of a master that is only slow on a busy machine: half a second,
// or a second in a cluster, is right for tests of failovers alone.
func noFailover(t *testing.T, set *backends.RedisSentinel) *backends.RedisSentinel {
	t.Helper()
	for _, s := range set.Sentinels {
		do(t, s, "SENTINEL", "SET", set.MasterName, "down-after-milliseconds", "120000")
	}
	return set
}
