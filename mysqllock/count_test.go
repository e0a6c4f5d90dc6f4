package mysqllock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
)

// spent returns how many statements clients sent to the server while fn ran, by the server's
// own count. Asking for that is one, and is taken off.
func spent(t *testing.T, m *backends.MariaDB, fn func()) int64 {
	t.Helper()
	db := admin(t, m)
	db.SetMaxOpenConns(1)
	before := status(t, db, "Questions")
	fn()
	return status(t, db, "Questions") - before - 1
}

// One statement to acquire and one to release, whatever the primitive and the strategy; a
// row has its token by a second one, on another connection.
func TestUncontendedCosts(t *testing.T) {
	m := backends.StartMariaDB(t, backends.MariaDBOptions{})
	base := storeURL(t, m)
	for _, x := range []struct {
		params string
		each   int64
	}{{"strategy=table", 2}, {"strategy=getlock", 2}, {"strategy=getlock&fence=off", 2}, {"strategy=row", 3}} {
		c := client(t, param(base, x.params), hasp.WithTTL(time.Hour))
		locks := map[string]func(context.Context) (*hasp.Lease, error){"Lock": c.Mutex("a").Lock, "TryLock": c.Mutex("a").TryLock}
		if x.params == "strategy=table" {
			s := c.Semaphore("s", 5)
			locks["RLock"], locks["TryRLock"] = c.RWMutex("b").RLock, c.RWMutex("b").TryRLock
			locks["Acquire"] = func(ctx context.Context) (*hasp.Lease, error) { return s.Acquire(ctx, 2) }
		}
		for what, lock := range locks {
			cycle := func() {
				l, err := lock(ctx(t))
				if err != nil {
					t.Fatal(err)
				}
				release(t, l)
			}
			cycle() // opens connections
			const n = 50
			if got := spent(t, m, func() {
				for range n {
					cycle()
				}
			}); got != x.each*n {
				t.Errorf("%s, %s: %d statements for %d locks and releases, want %d", x.params, what, got, n, x.each*n)
			}
		}
	}
}

// A refused try is one statement.
func TestRefusedTryCosts(t *testing.T) {
	m := backends.StartMariaDB(t, backends.MariaDBOptions{})
	base := storeURL(t, m)
	lock(t, client(t, base, hasp.WithTTL(time.Hour)), "a")
	c := client(t, base, hasp.WithTTL(time.Hour))
	_, _ = c.Mutex("a").TryLock(ctx(t))
	const n = 50
	if got := spent(t, m, func() {
		for range n {
			if _, err := c.Mutex("a").TryLock(ctx(t)); err == nil {
				t.Fatal("locked twice")
			}
		}
	}); got != n {
		t.Errorf("%d statements for %d tries", got, n)
	}
}

// With any number of waiters an acquisition costs the same: to enter, to listen, to leave.
func TestContendedCosts(t *testing.T) {
	for _, n := range []int{8, 64} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			m := backends.StartMariaDB(t, backends.MariaDBOptions{Config: []string{"max_connections=4000"}})
			base := param(storeURL(t, m), "connections=1")
			clients := make([]*hasp.Client, n)
			for i := range clients {
				clients[i] = client(t, base, hasp.WithTTL(time.Hour))
				release(t, lock(t, clients[i], fmt.Sprint("warm-", i)))
			}
			first := lock(t, client(t, base, hasp.WithTTL(time.Hour)), "a")
			rounds := max(2, 64/n)
			began := time.Now()
			got := spent(t, m, func() {
				var wg sync.WaitGroup
				for _, c := range clients {
					wg.Go(func() {
						for range rounds {
							if err := c.Do(context.Background(), "a", func(context.Context) error { return nil }); err != nil {
								t.Error(err)
							}
						}
					})
				}
				release(t, first)
				wg.Wait()
			})
			each := float64(got) / float64(n*rounds)
			// A call that listens lasts five seconds: who waits longer makes another.
			calls := 3 + 1.5*time.Since(began).Seconds()/5/float64(rounds)
			t.Logf("%d waiters: %.2f statements an acquisition, in %s", n, each, time.Since(began).Round(time.Millisecond))
			if each > calls+0.5 {
				t.Errorf("%.2f statements an acquisition, want %.2f", each, calls)
			}
		})
	}
}

// However many locks a client waits for, it has the pool's connections, one that renews and
// one that listens; and while nothing happens it asks once in five seconds.
func TestWaitersCosts(t *testing.T) {
	m := backends.StartMariaDB(t, backends.MariaDBOptions{})
	base := param(storeURL(t, m), "connections=4")
	holder, c := client(t, base, hasp.WithTTL(time.Hour)), client(t, base, hasp.WithTTL(time.Hour))
	db := admin(t, m)
	db.SetMaxOpenConns(1)
	const n = 200
	var wg sync.WaitGroup
	all, cancel := context.WithCancel(context.Background())
	for i := range n {
		name := fmt.Sprint("w", i)
		lock(t, holder, name)
		wg.Go(func() { _, _ = c.Mutex(name).Lock(all) })
	}
	eventually(t, "all wait", func() bool {
		return number(t, db, "SELECT COUNT(*) FROM locks.hasp_entries WHERE granted IS NULL") == n
	})
	// 4 + 1 of the holder, 4 + 2 of the one who waits, ours.
	if got := status(t, db, "Threads_connected"); got > 12 {
		t.Errorf("%d connections with %d waiters of one client", got, n)
	}
	if got := spent(t, m, func() { time.Sleep(3 * time.Second) }); got > 3 {
		t.Errorf("%d statements in three seconds in which nothing happened", got)
	}
	cancel()
	wg.Wait()
}
