package etcdlock_test

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// spent returns the messages that a member received while fn ran.
func spent(t *testing.T, e *backends.Etcd, fn func()) map[string]int64 {
	t.Helper()
	before := messages(t, e.Addr)
	fn()
	after := messages(t, e.Addr)
	maps.DeleteFunc(after, func(m string, n int64) bool { after[m] = n - before[m]; return after[m] == 0 })
	return after
}

// watched is how long a lock is held at the least before its key is watched.
const watched = 20 * time.Millisecond

// One call to lock, one to unlock, nothing else: with every primitive.
func TestUncontendedCost(t *testing.T) {
	t.Parallel()
	e := backends.StartEtcd(t, backends.EtcdOptions{})
	c := testkit.Client(t, storeURL([]*backends.Etcd{e}), hasp.WithTTL(time.Hour))
	testkit.Release(t, testkit.Lock(t, c, "warm"))
	// Each has a name for itself: the watch on a slow lock may end when the next kind is counted.
	acquire, try := c.Semaphore("cost-acquire", 5), c.Semaphore("cost-try-acquire", 5)
	for what, lock := range map[string]func(context.Context) (*hasp.Lease, error){
		"Lock": c.Mutex("cost-lock").Lock, "TryLock": c.Mutex("cost-try").TryLock,
		"RLock": c.RWMutex("cost-read").RLock, "TryRLock": c.RWMutex("cost-try-read").TryRLock,
		"Acquire":    func(ctx context.Context) (*hasp.Lease, error) { return acquire.Acquire(ctx, 2) },
		"TryAcquire": func(ctx context.Context) (*hasp.Lease, error) { return try.TryAcquire(ctx, 2) },
	} {
		const times = 100
		slow := int64(0)
		cost := spent(t, e, func() {
			for range times {
				began := time.Now()
				testkit.Release(t, testkit.Must[*hasp.Lease](t)(lock(ctx(t))))
				if time.Since(began) > watched {
					slow++
				}
			}
		})
		// A lock that a busy machine keeps that long is watched: the watch begins, ends, and
		// the key is looked for. Nothing of it is excused for the others.
		if n := cost["Txn"]; n < 2*times || n > 2*times+slow || total(cost) > 2*times+3*slow {
			t.Errorf("%d times %s, %d of them slow, cost %v, want %d transactions", times, what, slow, cost, 2*times)
		}
	}
}

// A try that is refused is one call, with every kind of holder.
func TestRefusedTryCost(t *testing.T) {
	t.Parallel()
	e := backends.StartEtcd(t, backends.EtcdOptions{})
	c := testkit.Client(t, storeURL([]*backends.Etcd{e}), hasp.WithTTL(time.Hour))
	l := testkit.Lock(t, c, "cost")
	p := testkit.Must[*hasp.Lease](t)(c.Semaphore("cost-sem", 3).Acquire(ctx(t), 2))
	const times = 50
	cost := spent(t, e, func() {
		for range times {
			c.Mutex("cost").TryLock(ctx(t))
			c.RWMutex("cost").TryRLock(ctx(t))
			c.Semaphore("cost-sem", 3).TryAcquire(ctx(t), 2)
		}
	})
	// And the two that are held come to be watched, if they were not before: a message for
	// each, and a question each at most whether the key is there.
	if n := cost["Txn"]; n < 3*times || n > 3*times+2 || total(cost) > 3*times+4 {
		t.Errorf("%d refused tries cost %v", 3*times, cost)
	}
	testkit.Release(t, l)
	testkit.Release(t, p)
}

// The cost of a contended acquisition does not grow with those who wait: enter, look, leave,
// and at a client's first turn a watch. Where the machine is slow, between entering and watching
// another entry has left: one read more; and the lock is held long enough for a watch on its
// key. A herd costs as many as there are waiters.
func TestContendedCost(t *testing.T) {
	t.Parallel()
	contendedCost(t, 8, 64)
}

func TestContendedCostOfMany(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	contendedCost(t, 512)
}

func contendedCost(t *testing.T, sizes ...int) {
	e := backends.StartEtcd(t, backends.EtcdOptions{})
	for _, n := range sizes {
		rounds := max(2, 256/n)
		cost := contend(t, e, n, rounds)
		each := float64(total(cost)) / float64(n*rounds)
		t.Logf("%d waiters: %.2f messages for each acquisition: %v", n, each, cost)
		if each > 6 {
			t.Errorf("%d waiters: %.2f messages for each acquisition", n, each)
		}
	}
}

// contend has n clients with a connection each take turns.
func contend(t *testing.T, e *backends.Etcd, n, rounds int) map[string]int64 {
	t.Helper()
	name := fmt.Sprint("contend-", n)
	clients := make([]*hasp.Client, n)
	for i := range clients {
		clients[i] = testkit.Client(t, storeURL([]*backends.Etcd{e}), hasp.WithTTL(time.Hour))
		testkit.Release(t, testkit.Must[*hasp.Lease](t)(clients[i].Mutex(fmt.Sprint("warm-", i)).Lock(ctx(t))))
	}
	defer func() {
		for _, c := range clients {
			c.Close()
		}
	}()
	return spent(t, e, func() {
		var wg sync.WaitGroup
		for _, c := range clients {
			wg.Go(func() {
				for range rounds {
					if err := c.Do(context.Background(), name, func(context.Context) error { return nil }); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
	})
}

// The reader's path: one among hundreds of readers finds the writer without reading them.
// What it reads is counted in bytes of the server's answers.
func TestReaderCostAmongReaders(t *testing.T) {
	t.Parallel()
	e := backends.StartEtcd(t, backends.EtcdOptions{})
	b := backend(t, storeURL([]*backends.Etcd{e}))
	s := testkit.Session(t, b, calm, nil)
	const readers = 300
	for i := range readers {
		testkit.Held(t, s.Ticket(request("crowd", fmt.Sprint("r", i), 1, 1<<31-1)))
	}
	raw := client(t, e.Addr)
	if n := len(keys(t, raw, "hasp/crowd/~r~")); n != readers {
		t.Fatalf("%d readers' keys", n)
	}
	w := testkit.Session(t, b, calm, nil).Ticket(whole("crowd", "w"))
	if v := testkit.Entered(t, w); v.Held {
		t.Fatalf("the writer: %+v", v)
	}
	watchesRest(t, e, readers)
	before := metrics(t, e.Addr)[sentBytes]
	all := entries(t, b, "crowd")
	crowd := metrics(t, e.Addr)[sentBytes] - before
	if len(all) != readers+1 || crowd < readers*50 {
		t.Fatalf("%d entries are listed in %.0f bytes: this test shows nothing", len(all), crowd)
	}
	late := s.Ticket(request("crowd", "late", 1, 1<<31-1))
	before = metrics(t, e.Addr)[sentBytes]
	if v, err := late.Enqueue(ctx(t)); err != nil || v.Held {
		t.Fatalf("a reader behind the writer: %+v, %v", v, err)
	}
	if err := w.Leave(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if v, err := late.Wait(ctx(t)); err != nil || !v.Held {
		t.Fatalf("the reader when the writer has gone: %+v, %v", v, err)
	}
	if cost := metrics(t, e.Addr)[sentBytes] - before; cost > crowd/10 {
		t.Errorf("to enter and wait cost %.0f bytes, the whole queue has %.0f", cost, crowd)
	}
}

// watchesRest waits until so many hold watches, and no more is said about them.
func watchesRest(t *testing.T, e *backends.Etcd, n int) {
	t.Helper()
	said := 0.0
	testkit.Eventually(t, "the watches", func() bool {
		m := metrics(t, e.Addr)
		rest := m["etcd_debugging_mvcc_watcher_total"] >= float64(n) && m[sentBytes] == said
		said = m[sentBytes]
		time.Sleep(watched)
		return rest
	})
}

const sentBytes = "etcd_network_client_grpc_sent_bytes_total"
