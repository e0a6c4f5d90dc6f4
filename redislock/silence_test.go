package redislock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/broken"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/history"
	"github.com/hasplock/hasp/internal/recordedhold"
	"github.com/hasplock/hasp/internal/testkit"
)

// These tests are of silence: nothing is refused, cut or answered, and nobody is told.

// The server stands still for less than a TTL: what is held stays held, and whoever waits
// keeps his place.
func TestServerStopsBriefly(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	c, other := client(t, server.URL()), client(t, server.URL())
	l := testkit.Lock(t, c, "a")
	got := testkit.Queued(t, other, "a")
	before := testkit.Entries(t, c, "a")
	must(t, server.Pause())
	time.Sleep(calm / 4)
	must(t, server.Resume())
	renewed(t, l)
	if after := testkit.Entries(t, c, "a"); len(after) != 2 || after[1].ID != before[1].ID {
		t.Errorf("the queue was %v and is %v", before, after)
	}
	must(t, l.Release(t.Context()))
	if next := testkit.Granted(t, got); next.ID() != before[1].ID {
		t.Error("another entry than the one that waited was granted")
	}
}

// throughStop has a client hold and three more wait while the server stands still for so
// long that every entry expires, and returns when the waiters have each had the lock, one at
// a time. stopped is called while the server stands. The renewals that were sent to it
// meanwhile are in its socket, and are the first that it reads when it goes on.
func throughStop(t *testing.T, wrap func(driver.Backend) driver.Backend, stopped func(*hasp.Lease)) (held *hasp.Lease) {
	t.Helper()
	server := backends.StartRedis(t, backends.RedisOptions{})
	const ttl = 3 * T // who waits must be renewed until the server stands still, on a busy machine too
	held = testkit.Lock(t, flawed(t, server.URL(), wrap, hasp.WithTTL(ttl)), "a")
	rec := history.New()
	ctx, cancel := context.WithTimeout(t.Context(), 3*slack)
	defer cancel()
	var waiters sync.WaitGroup
	const n = 3
	for i := range n {
		turn := recordedhold.Hold{Client: client(t, server.URL(), hasp.WithTTL(ttl)), Who: fmt.Sprint("waiter ", i), Name: "a", For: ttl / 100, TTL: slack}
		waiters.Go(func() {
			if err := turn.Run(ctx, rec); err != nil {
				t.Errorf("a waiter gave up: %v", err)
			}
		})
	}
	watcher := client(t, server.URL())
	for len(testkit.Entries(t, watcher, "a")) != 1+n {
		must(t, ctx.Err())
		time.Sleep(5 * time.Millisecond)
	}
	must(t, server.Pause())
	// A TTL from here nothing that was confirmed before can have time left.
	time.Sleep(ttl)
	stopped(held)
	must(t, server.Resume())
	waiters.Wait()
	h, err := rec.History()
	must(t, err)
	history.Require(t, h, history.Options{Fencing: true})
	for _, op := range h {
		if op.Token <= held.Token() {
			t.Errorf("token %d after %d", op.Token, held.Token())
		}
	}
	return held
}

// S4, S5: the server stands still for a TTL. The holder is told while it does, so before
// anybody else can hold; the waiters go on after it, one at a time; and the late renewals
// revive nothing.
func TestServerStops(t *testing.T) {
	t.Parallel()
	l := throughStop(t, whole, func(l *hasp.Lease) { testkit.Lost(t, l, hasp.ReasonExpired) })
	if l.Held() {
		t.Error("the lock has come to life again")
	}
}

// Of TestServerStops: a holder that takes a renewal for good which nobody has answered does
// not lose his lock, and holds it beside those that waited.
func TestControlServerStops(t *testing.T) {
	t.Parallel()
	l := throughStop(t, broken.Liar, func(*hasp.Lease) {})
	if !l.Held() {
		t.Errorf("lost, although its renewals always come back: %v", l.Err())
	}
}

// whole is a driver with nothing broken.
func whole(b driver.Backend) driver.Backend { return b }

// longerThanPongs is less than a message has in bytes, and more than the pongs of a client's
// three connections: those may get into the same hole.
const longerThanPongs = 50

// silenced has a waiter's subscription fall silent with the message of the release: its
// connection stays open, and nothing ever comes over it again. It returns when the message
// is lost, and drops nothing more.
func silenced(t *testing.T, strategy string, wrap func(driver.Backend) driver.Backend) (got <-chan *hasp.Lease) {
	t.Helper()
	server := backends.StartRedis(t, backends.RedisOptions{})
	net := testkit.Proxy(t, server.Addr)
	l := testkit.Lock(t, client(t, server.URL()+"?strategy="+strategy), "a")
	got = waitsAt(t, server, "redis://"+net.Addr()+"?strategy="+strategy, wrap)
	before := net.Stats().Down.Lost
	net.Set(faultnet.Down, faultnet.Rule{Mode: faultnet.Drop})
	must(t, l.Release(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), slack)
	defer cancel()
	if err := net.WaitFor(ctx, func(s faultnet.Stats) bool { return s.Down.Lost > before+longerThanPongs }); err != nil {
		t.Fatalf("no message came: %v", err)
	}
	net.Set(faultnet.Down, faultnet.Rule{})
	return got
}

// waitsAt starts to lock and returns when the client waits, and listens.
func waitsAt(t *testing.T, server *backends.Redis, storeURL string, wrap func(driver.Backend) driver.Backend) <-chan *hasp.Lease {
	t.Helper()
	got := testkit.Waiting(t, "a", func(seen hasp.Option) *hasp.Client {
		return flawed(t, storeURL, wrap, hasp.WithTTL(calm), seen)
	})
	testkit.Eventually(t, "somebody listens", func() bool { return do(t, server, "PUBSUB", "CHANNELS") != "" })
	return got
}

// A subscription falls silent, and nothing tells that it has: the hand-over is late and not
// lost, under every strategy.
func TestSubscriptionSilent(t *testing.T) {
	for _, strategy := range []string{"queue", "setnx", "redisson"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			got := silenced(t, strategy, whole)
			began := time.Now()
			next := testkit.Granted(t, got)
			t.Logf("handed over %s late", time.Since(began).Round(time.Millisecond))
			must(t, next.Release(t.Context()))
		})
	}
}

// Of TestSubscriptionSilent: a waiter that goes by messages alone. Without the fault it is
// granted by one; with it, it is not, so that the fault does lose what others wait for.
func TestControlSubscriptionSilent(t *testing.T) {
	byMessages := func(b driver.Backend) driver.Backend { return broken.Incurious(broken.Liar(b)) }
	for _, strategy := range []string{"queue", "setnx", "redisson"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			server := backends.StartRedis(t, backends.RedisOptions{})
			l := testkit.Lock(t, client(t, server.URL()+"?strategy="+strategy), "a")
			got := waitsAt(t, server, server.URL()+"?strategy="+strategy, byMessages)
			must(t, l.Release(t.Context()))
			must(t, testkit.Granted(t, got).Release(t.Context()))

			got = silenced(t, strategy, byMessages)
			time.Sleep(time.Second) // sooner than any client finds out that its connection is dead
			if len(got) > 0 {
				t.Error("granted, although its message was lost and it asks for nothing")
			}
		})
	}
}
