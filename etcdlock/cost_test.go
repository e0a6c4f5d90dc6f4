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

// One call to lock, one to unlock, nothing else: whatever the primitive.
func TestUncontendedCost(t *testing.T) {
	e := backends.StartEtcd(t, backends.EtcdOptions{})
	c := locks(t, storeURL([]*backends.Etcd{e}), hasp.WithTTL(time.Hour))
	release(t, must[*hasp.Lease](t)(c.Mutex("warm").Lock(ctx(t))))
	s := c.Semaphore("cost-sem", 5)
	for what, lock := range map[string]func(context.Context) (*hasp.Lease, error){
		"Lock": c.Mutex("cost").Lock, "TryLock": c.Mutex("cost").TryLock,
		"RLock": c.RWMutex("cost").RLock, "TryRLock": c.RWMutex("cost").TryRLock,
		"Acquire":    func(ctx context.Context) (*hasp.Lease, error) { return s.Acquire(ctx, 2) },
		"TryAcquire": func(ctx context.Context) (*hasp.Lease, error) { return s.TryAcquire(ctx, 2) },
	} {
		const times = 100
		cost := spent(t, e, func() {
			for range times {
				release(t, must[*hasp.Lease](t)(lock(ctx(t))))
			}
		})
		// A lock that a busy machine keeps for 20 ms is watched; that is not the rule.
		if cost["Txn"] != 2*times || total(cost) > 2*times+20 {
			t.Errorf("%d times %s cost %v, want %d transactions", times, what, cost, 2*times)
		}
	}
}

// A try that is refused is one call, whoever holds.
func TestRefusedTryCost(t *testing.T) {
	e := backends.StartEtcd(t, backends.EtcdOptions{})
	c := locks(t, storeURL([]*backends.Etcd{e}), hasp.WithTTL(time.Hour))
	l := must[*hasp.Lease](t)(c.Mutex("cost").Lock(ctx(t)))
	p := must[*hasp.Lease](t)(c.Semaphore("cost-sem", 3).Acquire(ctx(t), 2))
	time.Sleep(200 * time.Millisecond) // they are watched now
	const times = 50
	cost := spent(t, e, func() {
		for range times {
			c.Mutex("cost").TryLock(ctx(t))
			c.RWMutex("cost").TryRLock(ctx(t))
			c.Semaphore("cost-sem", 3).TryAcquire(ctx(t), 2)
		}
	})
	if total(cost) != 3*times || cost["Txn"] != 3*times {
		t.Errorf("%d refused tries cost %v", 3*times, cost)
	}
	release(t, l)
	release(t, p)
}

// The cost of a contended acquisition does not grow with those who wait: enter, watch,
// look, stop watching, leave.
func TestContendedCost(t *testing.T) {
	e := backends.StartEtcd(t, backends.EtcdOptions{})
	sizes := []int{8, 64, 512}
	if testing.Short() {
		sizes = sizes[:2]
	}
	for _, n := range sizes {
		rounds := max(2, 256/n)
		cost := contend(t, e, n, rounds)
		each := float64(total(cost)) / float64(n*rounds)
		t.Logf("%d waiters: %.2f messages for each acquisition: %v", n, each, cost)
		if each > 6.5 {
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
		clients[i] = locks(t, storeURL([]*backends.Etcd{e}), hasp.WithTTL(time.Hour))
		release(t, must[*hasp.Lease](t)(clients[i].Mutex(fmt.Sprint("warm-", i)).Lock(ctx(t))))
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

// etcd's own package watches from a revision that the server has reached, and then waits
// for a loop that runs ten times a second. Here other writes go on all the time, so that
// between entering and watching there is always one; and each hand-over is still prompt.
func TestHandOverAmongOtherWrites(t *testing.T) {
	e := backends.StartEtcd(t, backends.EtcdOptions{})
	raw := client(t, e.Addr)
	noise, stop := context.WithCancel(ctx(t))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	for i := range 4 {
		wg.Go(func() {
			for noise.Err() == nil {
				if _, err := raw.Put(noise, fmt.Sprint("noise-", i), "x"); err != nil && noise.Err() == nil {
					t.Error(err)
				}
			}
		})
	}
	const turns = 100
	began := time.Now()
	var takers sync.WaitGroup
	for range 2 {
		c := locks(t, storeURL([]*backends.Etcd{e}))
		takers.Go(func() {
			for range turns / 2 {
				if err := c.Do(ctx(t), "noisy", func(context.Context) error { return nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	takers.Wait()
	// A turn that has to wait for that loop takes 50 to 100 ms. Most would have to.
	if each := time.Since(began) / turns; each > 40*time.Millisecond {
		t.Errorf("a hand-over took %s on average", each)
	}
}

// The reader's path: one among a thousand readers finds the writer without reading them.
func TestReaderCostAmongReaders(t *testing.T) {
	e := backends.StartEtcd(t, backends.EtcdOptions{})
	b := backend(t, storeURL([]*backends.Etcd{e}))
	s := session(t, b, time.Minute, nil)
	const readers = 300
	for i := range readers {
		v, err := s.Ticket(request("crowd", fmt.Sprint("r", i), 1, 1<<31-1)).Enqueue(ctx(t))
		if err != nil || !v.Held {
			t.Fatalf("reader %d: %+v, %v", i, v, err)
		}
	}
	raw := client(t, e.Addr)
	if n := len(keys(t, raw, "hasp/crowd/~r~")); n != readers {
		t.Fatalf("%d readers' keys", n)
	}
	w := session(t, b, time.Minute, nil).Ticket(whole("crowd", "w"))
	if v, err := w.Enqueue(ctx(t)); err != nil || v.Held {
		t.Fatalf("the writer: %+v, %v", v, err)
	}
	late := s.Ticket(request("crowd", "late", 1, 1<<31-1))
	if v, err := late.Enqueue(ctx(t)); err != nil || v.Held {
		t.Fatalf("a reader behind the writer: %+v, %v", v, err)
	}
	if err := w.Leave(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if v, err := late.Wait(ctx(t)); err != nil || !v.Held {
		t.Fatalf("the reader when the writer has gone: %+v, %v", v, err)
	}
}
