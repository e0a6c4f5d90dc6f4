package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/history"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// `etcd grpc-proxy` is a server that speaks etcd's protocol and is none: it numbers watches by
// itself, shares them among its clients, does not say when it loses one, answers no requests for
// progress, and renews leases on its own. Behind it all promises hold but those that
// docs/backends/etcd.md names.

// behindProxy is an etcd with a proxy in front.
func behindProxy(t *testing.T, o backends.EtcdOptions) (server, proxy *backends.Etcd) {
	server = backends.StartEtcd(t, o)
	return server, backends.StartEtcdProxy(t, o, server)
}

// S1, L2: clients take turns under a few names, in one process and with their own sessions. At no
// moment two believe to hold, and no turn is slept through: no client waits until a renewal
// comes around.
func TestTurnsBehindProxy(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o backends.EtcdOptions) {
		server, proxy := behindProxy(t, o)
		rec := history.New()
		var turns atomic.Int64
		var all sync.WaitGroup
		for i := range 8 {
			at := proxy
			if i == 0 {
				at = server // one who knows nothing of the proxy
			}
			c := recordedClient{testkit.Client(t, storeURL([]*backends.Etcd{at}), hasp.WithTTL(calm)), fmt.Sprint("c", i), rec}
			for j := range 3 {
				all.Go(func() {
					for range 15 {
						l, err := c.lock(ctx(t), fmt.Sprint("proxied-", (i+j)%3))
						if err != nil {
							t.Error(err)
							return
						}
						time.Sleep(rand.N(5 * time.Millisecond))
						turns.Add(1)
						if err := l.release(ctx(t)); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		all.Wait()
		t.Logf("%d turns", turns.Load())
		for _, w := range violations(t, rec) {
			t.Error(w)
		}
	})
}

// L2: each of many waiters of one client, behind as many holders, is woken by the holder that it
// waits for, and by no other's release. The TTL is so long that a renewal cannot be what wakes it.
func TestWakeUpsBehindProxy(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o backends.EtcdOptions) {
		_, proxy := behindProxy(t, o)
		b := backend(t, storeURL([]*backends.Etcd{proxy}))
		holders, waiters := testkit.Session(t, b, calm, nil), testkit.Session(t, b, calm, nil)
		const n = 30
		var held [n]driver.Ticket
		var got [n]<-chan error
		for i := range n {
			held[i] = holders.Ticket(whole(fmt.Sprint("woken-", i), "h"))
			testkit.Held(t, held[i])
		}
		for i := range n {
			got[i] = waitsFor(t, waiters.Ticket(whole(fmt.Sprint("woken-", i), "w")))
		}
		for _, i := range rand.Perm(n) {
			select {
			case err := <-got[i]:
				t.Fatalf("%d is granted beside its holder (%v)", i, err)
			default:
			}
			left(t, held[i])
			turn(t, fmt.Sprint("the turn of ", i), got[i])
		}
	})
}

// Hazard 13: the key of one of many held locks is deleted. Its holder is told, and no other.
func TestDeletedKeyBehindProxy(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o backends.EtcdOptions) {
		server, proxy := behindProxy(t, o)
		raw := client(t, server.Addr)
		c := testkit.Client(t, storeURL([]*backends.Etcd{proxy}), hasp.WithTTL(calm))
		var held [20]*hasp.Lease
		for i := range held {
			held[i] = testkit.Lock(t, c, fmt.Sprint("deleted-", i))
		}
		time.Sleep(10 * watched)
		remove(t, raw, "deleted-7", held[7].ID())
		await(t, "the holder is told", held[7].Context().Done())
		for i, l := range held {
			if i != 7 && !l.Held() {
				t.Errorf("%d is lost: %v", i, l.Err())
			}
		}
	})
}

// The proxy is killed, and another takes its place: holders keep their locks, and waiters their
// places.
func TestProxyRestarted(t *testing.T) {
	t.Parallel()
	_, proxy := behindProxy(t, backends.EtcdOptions{})
	url := storeURL([]*backends.Etcd{proxy})
	holder, waiter := testkit.Client(t, url, hasp.WithTTL(steady)), testkit.Client(t, url, hasp.WithTTL(steady))
	handOver{holder: holder, waiter: waiter, name: "proxy-restarted", meanwhile: func() {
		before := testkit.Entries(t, holder, "proxy-restarted")
		if err := errors.Join(proxy.Kill(), proxy.Restart()); err != nil {
			t.Fatal(err)
		}
		testkit.Release(t, testkit.LockDespiteErrors(t, waiter, "proxy-other"))
		after := testkit.Entries(t, waiter, "proxy-restarted") // the holder's may dial again later
		if len(after) != len(before) || after[0].ID != before[0].ID || after[1].ID != before[1].ID {
			t.Errorf("the queue was %v, and is %v", before, after)
		}
	}}.passes(t)
}

// The server behind the proxy stops for longer than a TTL, and goes on.
func TestServerPausedBehindProxy(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	server, proxy := behindProxy(t, backends.EtcdOptions{})
	url := storeURL([]*backends.Etcd{proxy})
	holder, waiter := testkit.Client(t, url, hasp.WithTTL(faultTTL)), testkit.Client(t, url, hasp.WithTTL(faultTTL))
	for i, pause := range []time.Duration{faultTTL / 3, 2 * faultTTL} {
		handOver{holder: holder, waiter: waiter, name: fmt.Sprint("proxied-pause-", i), meanwhile: func() {
			if err := server.Pause(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(pause)
			if err := server.Resume(); err != nil {
				t.Fatal(err)
			}
		}}.passes(t)
	}
}

// The doctor names a proxy, and says nothing of members and leaders that it cannot know; and it
// names none where there is none.
func TestDoctorOfProxy(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o backends.EtcdOptions) {
		server, proxy := behindProxy(t, o)
		found := diagnose(t, backend(t, storeURL([]*backends.Etcd{proxy})))
		has(t, found, "warn proxy", "renews leases by itself")
		for _, f := range found {
			if strings.Contains(f, " leader: ") || strings.Contains(f, " topology: ") {
				t.Errorf("of a proxy: %s", f)
			}
		}
		for _, f := range diagnose(t, backend(t, storeURL([]*backends.Etcd{server}))) {
			if strings.Contains(f, " proxy: ") {
				t.Errorf("a proxy where there is none: %s", f)
			}
		}
	})
}

// A renewal is answered when it is asked for. The proxy renews by itself every third of the TTL,
// and on a stream that is kept it would answer when it has done so: here that is minutes later.
func TestRenewalsBehindProxy(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o backends.EtcdOptions) {
		_, proxy := behindProxy(t, o)
		s := testkit.Session(t, backend(t, storeURL([]*backends.Etcd{proxy})), calm, nil)
		for range 5 {
			time.Sleep(2 * time.Second) // renewals are not that close: the proxy forgets the last stream first
			short, cancel := context.WithTimeout(ctx(t), soon)
			if _, err := s.KeepAlive(short); err != nil {
				t.Error(err)
			}
			cancel()
		}
	})
}
