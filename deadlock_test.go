package hasp_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/memlock"
)

// ring has n clients of which each holds a lock and waits for that of the next.
func ring(t *testing.T, store *memlock.Store, n int, from func(*hasp.Lease) context.Context, opts ...hasp.LockOption) (clients []*hasp.Client, errs []chan error) {
	t.Helper()
	var leases []*hasp.Lease
	for i := range n {
		c := client(t, store.Backend(), hasp.WithOwner(hasp.Owner{Program: "p" + string(rune('0'+i))}))
		clients = append(clients, c)
		leases = append(leases, lock(t, c, "lock-"+string(rune('0'+i))))
	}
	for i, c := range clients {
		done := make(chan error, 1)
		errs = append(errs, done)
		time.Sleep(time.Millisecond) // so that one is the youngest
		go func() {
			l, err := c.Mutex("lock-"+string(rune('0'+(i+1)%n)), opts...).Lock(from(leases[i]))
			if err == nil {
				err = l.Release(context.Background())
			}
			_ = leases[i].Release(context.Background())
			done <- err
		}()
	}
	synctest.Wait()
	return clients, errs
}

func TestDeadlocks(t *testing.T) {
	for _, n := range []int{2, 3, 5} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			clients, _ := ring(t, memlock.New(), n, func(l *hasp.Lease) context.Context {
				work, stop := context.WithCancel(l.Context())
				context.AfterFunc(ctx, stop)
				return work
			})
			// Others wait as well, in no cycle: behind it, and for what is only held.
			lock(t, clients[0], "aside")
			lockLater(ctx, clients[1], "aside")
			lockLater(ctx, clients[1], "lock-0")
			synctest.Wait()
			found, err := clients[0].Deadlocks(t.Context())
			if err != nil || len(found) != 1 || len(found[0].Waits) != n || !found[0].Certain {
				t.Fatalf("%+v, %v", found, err)
			}
			for i, w := range found[0].Waits {
				next := found[0].Waits[(i+1)%n]
				if w.Name == next.Name || next.Waiter.Holds[0] != w.On.ID || w.Waiter.Owner.Program == w.On.Owner.Program {
					t.Errorf("wait %d: %+v", i, w)
				}
			}
			if s := found[0].String(); !strings.Contains(s, `(p0) waits for "lock-1" behind (p1)`) {
				t.Error(s)
			}
			cancel()
		})
	}
}

// A process that holds for the sake of another, which waits: as nested runs of a command do.
func TestDeadlockOfProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.New()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var held []*hasp.Lease
		for _, name := range []string{"1", "2"} {
			held = append(held, lock(t, client(t, store.Backend()), name))
		}
		for i, name := range []string{"2", "1"} {
			c := client(t, store.Backend())
			go func() { _, _ = c.Mutex(name, hasp.Holding(held[i].ID())).Lock(ctx) }()
		}
		synctest.Wait()
		onlooker := client(t, store.Backend())
		found, err := onlooker.Deadlocks(t.Context())
		if err != nil || len(found) != 1 || !found[0].Certain {
			t.Errorf("%+v, %v", found, err)
		}
		_, err = onlooker.Mutex("3", hasp.Holding("")).Lock(ctx)
		wantErr(t, err, hasp.ErrInvalid)
	})
}

// Without the contexts, what is left are the sessions: a suspicion, and it is called one.
func TestSuspectedDeadlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		clients, errs := ring(t, memlock.New(), 2, func(*hasp.Lease) context.Context { return ctx }, hasp.FailOnDeadlock(time.Second))
		found, err := clients[1].Deadlocks(t.Context())
		if err != nil || len(found) != 1 || found[0].Certain || len(found[0].Waits) != 2 {
			t.Errorf("%+v, %v", found, err)
		}
		time.Sleep(time.Minute)
		select {
		case err := <-errs[0]:
			t.Errorf("failed for a suspicion: %v", err)
		case err := <-errs[1]:
			t.Errorf("failed for a suspicion: %v", err)
		default:
		}
		cancel()
		wantErr(t, <-errs[0], context.Canceled)
	})
}

// Queues in which everybody will get the lock are none: the control of the tests above.
func TestNoDeadlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.New()
		a, b := client(t, store.Backend()), client(t, store.Backend())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		first := lock(t, a, "1")
		lock(t, b, "2")
		lock(t, b, "3")
		lockLater(ctx, a, "2")
		lockLater(first.Context(), a, "3") // b waits for nothing
		third := client(t, store.Backend())
		lockLater(ctx, third, "1")
		lockLater(ctx, third, "2") // behind a, that has what third wants; but not the reverse
		synctest.Wait()
		if found, err := a.Deadlocks(t.Context()); err != nil || len(found) != 0 {
			t.Errorf("%v, %v", found, err)
		}
	})
}

// The youngest gives up, and then all the others get their locks.
func TestFailOnDeadlock(t *testing.T) {
	for _, n := range []int{2, 4} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			_, errs := ring(t, memlock.New(), n, (*hasp.Lease).Context, hasp.FailOnDeadlock(3*time.Second))
			for i, done := range errs {
				err := <-done
				if i < n-1 && err != nil {
					t.Errorf("waiter %d: %v", i, err)
				}
				if i == n-1 && (!errors.Is(err, hasp.ErrDeadlock) || !strings.Contains(err.Error(), `waits for "lock-0"`)) {
					t.Errorf("the youngest: %v", err)
				}
			}
			if took := time.Since(began); took > 4*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}

// Of several holders of a semaphore each is in the way of a waiter, and one that leaves is enough.
// So a cycle through one of them is a deadlock only if the others cannot leave either.
func TestDeadlockOfSemaphores(t *testing.T) {
	for _, second := range []string{"", "m", "m2"} { // what the second holder of a permit waits for
		synctest.Test(t, func(t *testing.T) {
			store := memlock.New()
			x, y, n := client(t, store.Backend()), client(t, store.Backend()), client(t, store.Backend())
			mutex := func(c *hasp.Client, name string) func(context.Context) (*hasp.Lease, error) {
				return c.Mutex(name, hasp.FailOnDeadlock(time.Second)).Lock
			}
			permit := func(c *hasp.Client) func(context.Context) (*hasp.Lease, error) {
				return c.Semaphore("s", 2, hasp.FailOnDeadlock(time.Second)).Locker(1).Lock
			}
			must := func(l *hasp.Lease, err error) *hasp.Lease {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
				return l
			}
			ofX, ofY := must(permit(x)(t.Context())), must(permit(y)(t.Context()))
			m := must(mutex(n, "m")(t.Context()))
			m2 := must(mutex(n, "m2")(m.Context()))
			ended := make(chan error, 3)
			waitFor := func(take func(context.Context) (*hasp.Lease, error), held ...*hasp.Lease) {
				time.Sleep(time.Millisecond) // so that one is the youngest
				go func() {
					got, err := take(held[len(held)-1].Context())
					for _, l := range append(held, got) {
						if l != nil {
							_ = l.Release(context.Background())
						}
					}
					ended <- err
				}()
				synctest.Wait()
			}
			waitFor(permit(n), m, m2)
			waitFor(mutex(x, "m"), ofX)
			waiters := 2
			if second != "" {
				waitFor(mutex(y, second), ofY)
				waiters = 3
			} else {
				found, err := n.Deadlocks(t.Context())
				if err != nil || len(found) != 0 {
					t.Errorf("a deadlock that is none: %v, %v", found, err)
				}
				time.Sleep(time.Minute) // y works
				if len(ended) != 0 {
					t.Errorf("failed: %v", <-ended)
				}
				_ = ofY.Release(t.Context())
			}
			var failed []error
			for range waiters { // in any order: the one that fails has released before it says so
				if err := <-ended; err != nil {
					failed = append(failed, err)
				}
			}
			if second == "" && len(failed) > 0 || second != "" && (len(failed) != 1 || !errors.Is(failed[0], hasp.ErrDeadlock)) {
				t.Errorf("the second waits for %q: failed: %v", second, failed)
			}
		})
	}
}

// A cycle counts that two readings have shown, and not another one of the same names.
func TestDeadlockIsReadTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &changing{Backend: memlock.New().Backend()}
		c := client(t, b)
		if found, err := c.Deadlocks(t.Context()); err != nil || len(found) != 0 || b.reads != 4 {
			t.Errorf("%v, %v, %d queues read", found, err, b.reads)
		}
		b.same = true
		if found, err := c.Deadlocks(t.Context()); err != nil || len(found) != 1 {
			t.Errorf("the control: %v, %v", found, err)
		}
	})
}

// changing has two queues with a cycle, of other entries at each reading unless same is set.
type changing struct {
	driver.Backend
	same  bool
	reads int
}

func (b *changing) Names(_ context.Context, _ string, yield func(string) bool) error {
	_ = yield("1") && yield("2")
	return nil
}

func (b *changing) List(_ context.Context, name string, _ int) ([]driver.Entry, error) {
	round := b.reads / 2
	b.reads++
	if b.same {
		round = 0
	}
	id := func(what, of string) string { return fmt.Sprintf("%s-%s-%d", what, of, round) }
	entry := func(id, owner string) driver.Entry {
		return driver.Entry{Request: driver.Request{Name: name, ID: id, Units: driver.Whole, Capacity: driver.Whole, Owner: owner}}
	}
	other := map[string]string{"1": "2", "2": "1"}[name]
	return []driver.Entry{
		entry(id("holds", name), "{}"),
		entry(id("waits", name), `{"holds":["`+id("holds", other)+`"]}`),
	}, nil
}
