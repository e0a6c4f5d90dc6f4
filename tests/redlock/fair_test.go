package redlock_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// behind is a driver on a machine whose clock is slow.
type behind struct {
	driver.Backend
	by time.Duration
}

func (b behind) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	s, granted, err := b.Backend.Open(ctx, o)
	return behindSession{s, b.by}, granted, err
}

type behindSession struct {
	driver.Session
	by time.Duration
}

func (s behindSession) Ticket(r driver.Request) driver.Ticket {
	r.Since = r.Since.Add(-s.by)
	return s.Session.Ticket(r)
}

// Two clients whose clocks are slow by an hour, and one whose clock is right, take turns like
// any three. (Waiters were ordered by their clients' clocks: the two had 603 and 602 turns, and the
// third 4.)
func TestSlowClocks(t *testing.T) {
	t.Parallel()
	nodes := backends.StartRedisNodes(t, 3, backends.RedisOptions{})
	var turns [3]atomic.Int64
	var all atomic.Int64
	const enough = 90
	ctx, cancel := context.WithTimeout(t.Context(), 6*slack)
	defer cancel()
	var clients []*hasp.Client
	for i := range turns { // all are open before the first begins: they must meet
		var b driver.Backend = testkit.Open(t, urlOf(nodes)+"?node_timeout=2s")
		if i < 2 {
			b = behind{b, time.Hour}
		}
		clients = append(clients, testkit.ClientOn(t, b, hasp.WithTTL(slack)))
	}
	var wg sync.WaitGroup
	for i, c := range clients {
		wg.Go(func() {
			for all.Load() < enough {
				l, err := c.Mutex("a").Lock(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				turns[i].Add(1)
				all.Add(1)
				time.Sleep(5 * time.Millisecond) // the others come to wait
				testkit.Release(t, l)
			}
		})
	}
	wg.Wait()
	t.Log(fmt.Sprint("turns: ", turns[0].Load(), ", ", turns[1].Load(), " and ", turns[2].Load()))
	if n := turns[2].Load(); n < enough/10 {
		t.Errorf("%d of %d turns for the client whose clock is right", n, all.Load())
	}
}

// L2: as in redislock: a waiter is woken by a release although another waiter, or it itself,
// has a TTL much shorter than the time for which it sleeps.
func TestSleepersAreRemembered(t *testing.T) {
	t.Parallel()
	const endless = 10 * time.Minute // the holder's TTL: no waiter is woken by the end of its key
	for what, ttls := range map[string][]time.Duration{
		"another with a shorter TTL":      {endless, 500 * time.Millisecond},
		"a TTL shorter than the holder's": {500 * time.Millisecond},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			nodes := backends.StartRedisNodes(t, 3, backends.RedisOptions{})
			take := func(ttl time.Duration) driver.Ticket {
				return session(t, testkit.Open(t, urlOf(nodes)), ttl, noGone).Ticket(testkit.Request("a"))
			}
			holder := take(endless)
			testkit.Held(t, holder)
			testkit.Eventually(t, "the key on all servers", everywhere(t, nodes, "a"))
			var sleeper driver.Ticket
			for i, ttl := range ttls {
				ticket := take(ttl)
				var v driver.Verdict
				var err error
				testkit.Eventually(t, "the holder is known, and the waiters by all servers", func() bool { // two have to answer, and the third may be late
					v, err = ticket.Enqueue(t.Context())
					unasked := func(n *backends.Redis) bool { return pttl(t, n, "hasp:lock:w:{a}") < 0 }
					return err == nil && v.Retry > endless/2 && !slices.ContainsFunc(nodes, unasked)
				})
				if i == 0 {
					sleeper = ticket
				} else {
					defer ticket.Leave(t.Context())
				}
			}
			for _, n := range nodes {
				if left := pttl(t, n, "hasp:lock:w:{a}"); left < endless {
					t.Errorf("the set of the waiters lasts for %s, and a waiter sleeps for %s", left, endless)
				}
			}
			// Asleep, and not about to try for another reason.
			for began := time.Now(); time.Since(began) < 1500*time.Millisecond; {
				ctx, cancel := context.WithTimeout(t.Context(), 750*time.Millisecond)
				if _, err := sleeper.Wait(ctx); err == nil {
					began = time.Now()
				}
				cancel()
			}
			if err := holder.Leave(t.Context()); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*slack)
			defer cancel()
			v, err := sleeper.Wait(ctx)
			if err != nil && ctx.Err() != nil { // woken in time, it makes one attempt, which a busy machine fails
				t.Fatalf("not woken: %v", err)
			}
			for !v.Held && ctx.Err() == nil { // two may be woken, and meet; or the servers are slow to answer
				v, err = sleeper.Enqueue(ctx)
			}
			if !v.Held {
				t.Errorf("woken, and not served: %v", err)
			}
		})
	}
}
