package redislock_test

import (
	"context"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/broken"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// The controls: drivers of package broken, under the faults of fault_test.go.
// Each test here shows that the fault happens, and that the check of the fault test then tells
// the broken driver from the correct one. TestControlRandomFaults is the control of
// TestRandomFaults, and the tests of failovers are each other's.

// brokenClient opens a client whose driver is broken.
func brokenClient(t *testing.T, storeURL string, wrap func(driver.Backend) driver.Backend, opts ...hasp.Option) *hasp.Client {
	t.Helper()
	return testkit.ClientOn(t, wrap(testkit.Open(t, storeURL)), opts...)
}

// Of TestKeyRemoved, TestServerRestarts and TestPartition: a client that does not ask the store
// does not learn of the loss, and believes that it holds while the next one holds.
func TestControlLoss(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	c, other := brokenClient(t, server.URL(), broken.Liar, hasp.WithTTL(calm)), client(t, server.URL())
	l := testkit.Lock(t, c, "orders")
	do(t, server, "DEL", "hasp:{orders}")
	next := testkit.Lock(t, other, "orders")
	time.Sleep(calm * 2 / 3) // two renewals
	if !l.Held() || !next.Held() {
		t.Error("a driver that renews nothing has noticed the loss: by what?")
	}
}

// Of TestClientKill, TestWaiterOutlivesFlush and TestServerRestarts: a waiter that neither renews
// nor asks after its subscription broke misses a grant whose message was lost, and the end of its
// entry.
func TestControlNoMessages(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	c := client(t, server.URL())
	other := brokenClient(t, server.URL(), func(b driver.Backend) driver.Backend { return broken.Deaf(broken.Liar(b)) }, hasp.WithTTL(calm))
	l := testkit.Lock(t, c, "a")
	got := testkit.Queued(t, other, "a")
	do(t, server, "CLIENT", "KILL", "TYPE", "pubsub")
	if err := l.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(calm / 3)
	if len(got) > 0 {
		t.Error("a waiter that gets no messages was granted: the message was not lost")
	}
	if q := testkit.Entries(t, c, "a"); len(q) != 1 {
		t.Errorf("the store has %v", q)
	}
}

// Of TestAnswersLost: a driver that asks again under another ID leaves an entry behind, and
// waits for itself.
func TestControlAnswersLost(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	net := testkit.Proxy(t, server.Addr)
	c := brokenClient(t, "redis://"+net.Addr(), broken.Renaming, hasp.WithTTL(calm))
	other := client(t, server.URL())
	testkit.Lock(t, c, "warm")
	cut := net.Lose(faultnet.Down, 1, faultnet.Contains("hasp:{a}"))
	ctx, cancel := context.WithTimeout(t.Context(), slack)
	defer cancel()
	go func() { _, _ = c.Mutex("a").Lock(ctx) }()
	<-cut
	for len(testkit.Entries(t, other, "a")) != 2 {
		if ctx.Err() != nil {
			t.Fatalf("one lock was asked for under two IDs, and the store has %v", testkit.Entries(t, other, "a"))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Of TestNoOrphans: a driver that does not clean up leaves its entry beyond the TTL.
func TestControlOrphans(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	held := testkit.Lock(t, client(t, server.URL()), "a")
	c := brokenClient(t, server.URL(), broken.Careless, hasp.WithTTL(calm))
	other := client(t, server.URL())
	ctx, cancel := context.WithTimeout(t.Context(), T)
	defer cancel()
	if _, err := c.Mutex("a").Lock(ctx); err == nil {
		t.Fatal("granted beside the holder")
	}
	time.Sleep(calm)
	if q := testkit.Entries(t, other, "a"); len(q) != 2 || q[0].ID != held.ID() {
		t.Errorf("without a clean-up the store has %v", q)
	}
}
