package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
)

// T is the TTL of clients whose leases are to expire, and calm of those whose leases are to
// last whatever else the machine does. slack is how long is waited for what must come: only
// a fault takes that long.
const (
	T     = 2 * time.Second
	calm  = 12 * time.Second
	slack = 30 * time.Second
)

func client(t *testing.T, storeURL string, opts ...hasp.Option) *hasp.Client {
	t.Helper()
	c, err := hasp.Open(t.Context(), storeURL, append([]hasp.Option{hasp.WithTTL(calm)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func lock(t *testing.T, c *hasp.Client, name string) *hasp.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*slack)
	defer cancel()
	l, err := c.Mutex(name).Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// waiting starts to lock and returns when the entry stands in the queue.
func waiting(t *testing.T, c *hasp.Client, name string) <-chan *hasp.Lease {
	t.Helper()
	before := len(queue(t, c, name))
	got := make(chan *hasp.Lease, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 4*slack)
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		l, err := c.Mutex(name).Lock(ctx)
		if err != nil {
			t.Logf("waiter: %v", err)
		}
		got <- l
	}()
	for end := time.Now().Add(slack); len(queue(t, c, name)) == before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the waiter does not get into the queue")
		}
	}
	return got
}

func queue(t *testing.T, c *hasp.Client, name string) []hasp.Entry {
	t.Helper()
	q, err := c.Inspect(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return append(q.Holders, q.Waiters...)
}

// takes waits for a lease.
func takes(t *testing.T, got <-chan *hasp.Lease) *hasp.Lease {
	t.Helper()
	select {
	case l := <-got:
		if l == nil {
			t.Fatal("the waiter gave up")
		}
		return l
	case <-time.After(slack):
		t.Fatalf("no grant within %s", slack)
	}
	return nil
}

// renewed returns when the lease has been renewed since the call.
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

func wantLost(t *testing.T, l *hasp.Lease, reasons ...hasp.Reason) {
	t.Helper()
	began := time.Now()
	select {
	case <-l.Lost():
	case <-time.After(slack):
		t.Fatalf("not lost within %s", slack)
	}
	var lost *hasp.LostError
	if !errors.As(l.Err(), &lost) {
		t.Fatalf("Err() = %v after %s", l.Err(), time.Since(began))
	}
	for _, r := range reasons {
		if lost.Reason == r {
			return
		}
	}
	t.Errorf("lost with reason %q (%v), want one of %q", lost.Reason, lost, reasons)
}

// noFailover keeps a master that had to wait for the processor from being taken for dead:
// half a second, or a second in a cluster, is right for tests of failovers alone.
func noFailover(t *testing.T, set *backends.RedisSentinel) *backends.RedisSentinel {
	t.Helper()
	for _, s := range set.Sentinels {
		do(t, s, "SENTINEL", "SET", set.MasterName, "down-after-milliseconds", "120000")
	}
	return set
}

var requests atomic.Int64

// request is for a mutex, under an ID of its own.
func request(name string) driver.Request {
	return driver.Request{
		Name: name, ID: fmt.Sprintf("test-%d", requests.Add(1)), Units: driver.Whole, Capacity: driver.Whole, Since: time.Now(),
	}
}
