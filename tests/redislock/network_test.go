package redislock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
)

// behindProxy starts a server, and two clients of it: c behind a proxy, and other without one.
func behindProxy(t *testing.T, ttl time.Duration) (net *faultnet.Proxy, c, other *hasp.Client) {
	t.Helper()
	server := backends.StartRedis(t, backends.RedisOptions{})
	net = testkit.Proxy(t, server.Addr)
	return net, client(t, "redis://"+net.Addr(), hasp.WithTTL(ttl)), client(t, server.URL())
}

// S8: the answer of each kind of request is lost after the server has carried it out. A
// lock is acquired once, a released lock is released, and no client waits for a lost entry.
func TestAnswersLost(t *testing.T) {
	t.Parallel()
	net, c, other := behindProxy(t, calm)
	lose := func(name string) <-chan struct{} {
		return net.Lose(faultnet.Down, 1, faultnet.Contains("hasp:{"+name+"}"))
	}
	for range 3 {
		cut := lose("a")
		l := testkit.Lock(t, c, "a")
		<-cut
		if q := testkit.Entries(t, other, "a"); len(q) != 1 || q[0].ID != l.ID() || q[0].Token != l.Token() {
			t.Fatalf("held as %s with token %d, and the store has %v", l.ID(), l.Token(), q)
		}
		cut = lose("a")
		// Asked again, this store says "gone", and the client cannot know whether it has
		// forgotten the entry. nil: the lost answer was another one.
		if err := l.Release(t.Context()); err != nil && !errors.Is(err, hasp.ErrUnknown) {
			t.Errorf("release: %v", err)
		}
		<-cut
		if q := testkit.Entries(t, other, "a"); len(q) != 0 {
			t.Errorf("left behind: %v", q)
		}
	}
	// A try, and a waiter's entry.
	cut := lose("b")
	l, err := c.Mutex("b").TryLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	<-cut
	held := testkit.Lock(t, other, "w")
	cut = lose("w")
	got := testkit.Queued(t, c, "w")
	<-cut
	if q := testkit.Entries(t, other, "w"); len(q) != 2 {
		t.Errorf("one holder and one waiter, and the store has %v", q)
	}
	if err := held.Release(t.Context()); err != nil {
		t.Error(err)
	}
	testkit.Granted(t, got)
	if !l.Held() {
		t.Error(l.Err())
	}
}

// S5, L2: the network holds everything for longer than a TTL and then delivers it. The holder
// learns of its loss in time, late requests revive nothing, and the next client holds.
func TestPartition(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	net := testkit.Proxy(t, server.Addr)
	c, other := client(t, "redis://"+net.Addr(), hasp.WithTTL(T)), client(t, server.URL())
	l := testkit.Lock(t, c, "a")
	got := testkit.Waiting(t, "a", func(o hasp.Option) *hasp.Client { return client(t, server.URL(), o) })
	net.Partition()
	next := testkit.Granted(t, got)
	granted := time.Now()
	believed, noticed := l.Held(), time.Now() // it may be Held that notices the loss
	if believed {
		t.Error("two hold")
	}
	if end := l.Deadline(); end.IsZero() || end.After(granted) {
		t.Errorf("trusted until %s, and the next was granted at %s", end, granted)
	}
	testkit.Lost(t, l, hasp.ReasonExpired)
	if lost := new(hasp.LostError); errors.As(l.Err(), &lost) && lost.Since.After(noticed) {
		t.Errorf("lost %s after the next was granted", lost.Since.Sub(granted))
	}
	net.Heal()
	time.Sleep(T / 2)
	if q := testkit.Entries(t, other, "a"); len(q) != 1 || q[0].ID != next.ID() {
		t.Errorf("%s holds, and the store has %v", next.ID(), q)
	}
	if err := next.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := testkit.Lock(t, c, "a").Release(t.Context()); err != nil { // L2
		t.Error(err)
	}
}

// L3: cancelling returns at once, also while the server hangs.
func TestCancelWhileServerHangs(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	c := client(t, server.URL(), hasp.WithTTL(time.Hour))
	testkit.Lock(t, c, "warm")
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	defer server.Resume()
	if _, err := server.Do("PING"); err == nil {
		t.Fatal("the server answers: nothing would have to be cancelled")
	}
	for i := range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { _, err := c.Mutex("a").Lock(ctx); done <- err }()
		time.Sleep(time.Duration(i) * 5 * time.Millisecond)
		began := time.Now()
		cancel()
		err := <-done
		// 250 ms are promised; the rest is for a busy machine. Without the promise it is the TTL.
		if took := time.Since(began); took > slack {
			t.Errorf("cancelling took %s", took)
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
	}
}

// L4: entries of cancelled acquisitions whose clean-up could not reach the server are gone
// within a TTL after it is back.
func TestNoOrphans(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	c, other := client(t, server.URL(), hasp.WithTTL(T)), client(t, server.URL())
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, _ = c.Mutex("a").Lock(ctx)
		cancel()
	}
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for len(testkit.Entries(t, other, "a")) > 0 {
		if time.Since(began) > T+slack {
			t.Fatalf("left behind: %v", testkit.Entries(t, other, "a"))
		}
		time.Sleep(10 * time.Millisecond)
	}
}
