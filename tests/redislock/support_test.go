package redislock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
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

// onDisk is the TTL of clients of a server that writes to its disk first, and is killed: its start
// may take long while others write to the disk, and must not take a TTL.
const onDisk = 2 * calm

// releaseOnDisk releases a lock of such a server. If a busy disk takes longer than the client waits
// for an answer, the client asks again, is told that the lock is gone, and cannot know why.
func releaseOnDisk(t *testing.T, l *hasp.Lease) {
	t.Helper()
	began := time.Now()
	err := l.Release(testkit.Context(t))
	if err != nil && !(errors.Is(err, hasp.ErrUnknown) && time.Since(began) > 2*time.Second) {
		t.Errorf("release after %s: %v", time.Since(began), err)
	}
}

// enter asks for a place, and asks again if the answer takes longer than the driver waits.
func enter(t *testing.T, ticket driver.Ticket) driver.Verdict {
	t.Helper()
	ctx := testkit.Context(t)
	v, err := testkit.Again(ctx, func() (driver.Verdict, error) { return ticket.Enqueue(ctx) })
	if err != nil {
		t.Fatal(err)
	}
	return v
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
