package hasp_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/memlock"
)

func mutexes(c *hasp.Client, names ...string) (locks []hasp.Locker) {
	for _, name := range names {
		locks = append(locks, c.Mutex(name))
	}
	return locks
}

// A refusal names the lock that it is about as Lock does: hasp run takes one lock by LockAny, too.
func TestLockAnyRefusedAsLock(t *testing.T) {
	_, c, _ := pair(t)
	_, one := c.Mutex("").Lock(t.Context())
	_, any := hasp.LockAny(t.Context(), c.Mutex(""))
	if one == nil || any == nil || any.Error() != one.Error() {
		t.Errorf("%v, and of LockAny %v", one, any)
	}
}

// anyLater is lockLater for LockAny.
func anyLater(ctx context.Context, locks ...hasp.Locker) <-chan result {
	ch := make(chan result, 1)
	go func() {
		l, err := hasp.LockAny(ctx, locks...)
		ch <- result{l, err, time.Now()}
	}()
	return ch
}

func TestLockAny(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rec recorder
		b, c, other := pair(t, hasp.WithObserver(&rec))
		names := []string{"a", "b", "c"}
		var held []*hasp.Lease
		for _, name := range names {
			held = append(held, lock(t, other, name))
		}
		// A try that finds nothing has failed once; those busy before a free one have not.
		_, err := hasp.TryLockAny(t.Context(), mutexes(c, names...)...)
		wantErr(t, err, hasp.ErrBusy)
		free, err := hasp.TryLockAny(t.Context(), mutexes(c, "a", "b", "free")...)
		if err != nil || free.Name() != "free" {
			t.Fatal(free, err)
		}
		if kinds, _ := rec.take(); !slices.Equal(kinds, []hasp.EventKind{hasp.EventFailed, hasp.EventAcquired}) {
			t.Errorf("events of tries: %v", kinds)
		}

		got := anyLater(t.Context(), mutexes(c, "a", "b", "c", "b")...)
		synctest.Wait()
		for _, name := range names {
			if q, err := other.Inspect(t.Context(), name); err != nil || len(q.Waiters) != 1 || !q.Waiters[0].AnyOf || q.Holders[0].AnyOf {
				t.Errorf("%s: %+v, %v", name, q, err)
			}
		}
		// The answers to those that leave are lost: each asks again (S8).
		b.plan("leave", plan{loseAnswer: errors.New("lost"), times: 2})
		if err := held[1].Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		r := <-got
		if r.err != nil || r.lease.Name() != "b" || !r.lease.Held() || r.lease.Context().Err() != nil {
			t.Fatalf("%+v", r)
		}
		if _, ok := hasp.LeaseFrom(r.lease.Context()); !ok {
			t.Error("the work does not know its lease")
		}
		time.Sleep(time.Second)
		for _, name := range names {
			if n := entries(t, other, name); n != 1 {
				t.Errorf("%s has %d entries", name, n)
			}
		}
		// Those that were busy, or not needed, are no failures.
		kinds, _ := rec.take()
		kinds = slices.DeleteFunc(kinds, func(k hasp.EventKind) bool { return k == hasp.EventRenewed })
		if !slices.Equal(kinds, []hasp.EventKind{hasp.EventWaiting, hasp.EventWaiting, hasp.EventWaiting, hasp.EventAcquired}) {
			t.Errorf("events %v", kinds)
		}
	})
}

// What the context holds already is taken; with Reentrant it is taken again.
func TestLockAnyOfWhatIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, other := pair(t)
		a, b := lock(t, c, "a"), lock(t, other, "b")
		got := anyLater(a.Context(), mutexes(c, "a", "b")...)
		synctest.Wait()
		if err := b.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		r := <-got
		if r.err != nil || r.lease.Name() != "b" {
			t.Fatalf("%+v", r)
		}
		_, err := hasp.LockAny(r.lease.Context(), mutexes(c, "a", "b")...)
		wantErr(t, err, hasp.ErrDeadlock)
		again, err := hasp.LockAny(r.lease.Context(), c.Mutex("a", hasp.Reentrant()), c.Mutex("b"))
		if err != nil || again.Name() != "a" || again.Token() != a.Token() {
			t.Errorf("again: %v, %v", again, err)
		}
	})
}

// Two grants at the same moment: the second goes to the next at once, also with MinHold.
func TestLockAnyGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		held := []*hasp.Lease{lock(t, other, "a"), lock(t, other, "b")}
		min := hasp.MinHold(time.Hour)
		got := anyLater(t.Context(), c.Mutex("a", min), c.Mutex("b", min))
		synctest.Wait()
		b.plan("wait", plan{after: 100 * time.Millisecond}) // both are granted before the first is known
		for _, l := range held {
			if err := l.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		r := <-got
		if r.err != nil {
			t.Fatal(r.err)
		}
		rest := map[string]string{"a": "b", "b": "a"}[r.lease.Name()]
		began := time.Now()
		l := lock(t, other, rest)
		if took := time.Since(began); took > time.Second || !l.Held() || !r.lease.Held() {
			t.Errorf("the rest was free after %s", took)
		}
	})
}

// Of many it waits for some, and sees what else has become free when it looks again.
func TestLockAnyOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, other := pair(t)
		var names []string
		held := map[string]*hasp.Lease{}
		for i := range 40 {
			name := fmt.Sprint(i)
			names, held[name] = append(names, name), lock(t, other, name)
		}
		got := anyLater(t.Context(), mutexes(c, names...)...)
		synctest.Wait()
		queues, free := 0, ""
		for _, name := range names {
			switch entries(t, other, name) {
			case 2:
				queues++
			case 1:
				free = name
			}
		}
		if queues != 16 || free == "" {
			t.Fatalf("waits in %d queues", queues)
		}
		began := time.Now()
		if err := held[free].Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r := <-got; r.err != nil || r.lease.Name() != free || time.Since(began) > 10*time.Second {
			t.Fatalf("%+v after %s, want %s", r, time.Since(began), free)
		}
	})
}

// Who has waited outlasts an outage, also where it looks again: as Lock does in its queue. Who has
// not is told.
func TestLockAnyOutlastsAnOutage(t *testing.T) {
	for what, faults := range map[string]map[string]plan{
		"no store":  {"open": {err: errNetwork}, "keepalive": {err: errNetwork}, "enqueue": {err: errNetwork}, "wait": {err: errNetwork}},
		"no grants": {"enqueue": {err: errNetwork}},
		"refusals":  {"enqueue": {err: driver.ErrRefused}},
		"restarts":  {"enqueue": {err: driver.ErrGone, times: 20}},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { outage(t, faults) })
		})
	}
}

func outage(t *testing.T, faults map[string]plan) {
	b, c, other := pair(t)
	const n = 40
	held := make([]*hasp.Lease, n)
	for i := range held {
		held[i] = lock(t, other, fmt.Sprintf("ids/%d", i))
	}
	const waiters = 4 // some of whose queues are those of the others
	type taken struct {
		slot *hasp.Slot
		err  error
	}
	got := make(chan taken, waiters)
	for range waiters {
		go func() {
			l, err := c.Pool("ids", n).Lock(t.Context())
			got <- taken{l, err}
		}()
		time.Sleep(time.Second)
	}
	for call, p := range faults {
		b.plan(call, p)
	}
	if _, err := c.Pool("ids", n).TryLock(t.Context()); err == nil || errors.Is(err, hasp.ErrBusy) {
		t.Errorf("a try at the wrong moment: %v", err)
	}
	time.Sleep(time.Minute)
	for call := range faults {
		b.heal(call)
	}
	for _, l := range held[:waiters] {
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range waiters {
		if r := <-got; r.err != nil || r.slot.Number >= waiters {
			t.Errorf("%+v, %v", r.slot, r.err)
		}
	}
}

// All places of a caller can be turns behind others of its client: it has waited as well when it
// comes to the store in an outage. (It was told of the outage, one time in a thousand.)
func TestLockAnyOutlastsAnOutageBehindOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		held := lock(t, other, "a")
		lock(t, other, "b")
		ctx, cancel := context.WithCancel(t.Context())
		for _, name := range []string{"a", "b"} {
			go c.Mutex(name).Lock(ctx)
		}
		synctest.Wait()
		got := anyLater(t.Context(), mutexes(c, "a", "b")...)
		synctest.Wait()
		if n := entries(t, other, "a") + entries(t, other, "b"); n != 4 {
			t.Fatalf("%d entries: the choice has a place in the store", n)
		}
		b.plan("enqueue", plan{err: driver.ErrRefused})
		cancel()
		time.Sleep(time.Minute)
		b.heal("enqueue")
		if err := held.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r := <-got; r.err != nil || r.lease.Name() != "a" {
			t.Errorf("%+v", r)
		}
	})
}

// The draw leaves out what the context holds: the one lock that another has is waited for. (Sixteen
// that are held were drawn now and then, and the call said that it would wait for itself.)
func TestLockAnyDrawsWhatOthersHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, other := pair(t)
		const n = 40
		ctx := t.Context()
		p := c.Pool("ids", n)
		theirs := lock(t, other, "ids/5")
		for range n - 1 {
			l, err := p.TryLock(ctx)
			if err != nil {
				t.Fatal(err)
			}
			ctx = l.Context()
		}
		got := make(chan *hasp.Slot, 1)
		go func() {
			s, err := p.Lock(ctx)
			if err != nil {
				t.Error(err)
			}
			got <- s
		}()
		synctest.Wait()
		if n := entries(t, other, "ids/5"); n != 2 {
			t.Errorf("%d entries where it must wait", n)
		}
		if err := theirs.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		s := <-got
		if s == nil || s.Number != 5 {
			t.Fatalf("%+v", s)
		}
		_, err := p.Lock(s.Context())
		wantErr(t, err, hasp.ErrDeadlock)
	})
}

// A choice of one is none: it can be in a certain deadlock.
func TestLockAnyOfOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, other := pair(t)
		lock(t, other, "a")
		ctx, cancel := context.WithCancel(t.Context())
		anyLater(ctx, c.Mutex("a"))
		synctest.Wait()
		if q, err := other.Inspect(t.Context(), "a"); err != nil || len(q.Waiters) != 1 || q.Waiters[0].AnyOf {
			t.Errorf("%+v, %v", q, err)
		}
		cancel()
	})
}

// Nor is one of several where the context holds all the others: two that wait for each other so are
// in a certain deadlock. The control: with one more lock, which is taken too, neither is.
func TestLockAnyButOneHeld(t *testing.T) {
	for _, more := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := memlock.New()
			c, other := client(t, store.Backend()), client(t, store.Backend())
			ctx, cancel := context.WithCancel(t.Context())
			a, b := lock(t, c, "a"), lock(t, other, "b")
			lock(t, client(t, store.Backend()), "third")
			names := []string{"a", "b"}
			if more {
				names = append(names, "third")
			}
			first, stop := context.WithCancel(a.Context())
			context.AfterFunc(ctx, stop)
			second, stop2 := context.WithCancel(b.Context())
			context.AfterFunc(ctx, stop2)
			anyLater(first, mutexes(c, names...)...)
			anyLater(second, mutexes(other, names...)...)
			synctest.Wait()
			time.Sleep(time.Second)
			found, err := c.Deadlocks(t.Context())
			if err != nil || (len(found) == 1 && found[0].Certain) == more {
				t.Errorf("more %t: %+v, %v", more, found, err)
			}
			cancel()
			synctest.Wait()
		})
	}
}

// As many locks as the largest pool has are not compared with each other, which took half a minute.
func TestLockAnyOfThousands(t *testing.T) {
	_, c, _ := pair(t)
	var locks []hasp.Locker
	for i := range 1 << 16 {
		locks = append(locks, c.Mutex(fmt.Sprint(i)))
	}
	began := time.Now() // 0.4 s; half of the locks took 75 s where each was compared with each
	if l, err := hasp.LockAny(t.Context(), slices.Repeat(locks, 16)...); err != nil || l.Name() != "0" {
		t.Error(l, err)
	}
	if took := time.Since(began); took > 40*time.Second {
		t.Errorf("it took %s", took)
	}
}

// Bad input is refused before any I/O, and one lock that cannot be had fails the call.
func TestLockAnyRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		for what, locks := range map[string][]hasp.Locker{
			"none":        {},
			"nil":         {nil},
			"two clients": {c.Mutex("a"), other.Mutex("b")},
			"name":        mutexes(c, ""),
			"option":      {c.Mutex("a"), c.Mutex("b", hasp.FailOnDeadlock(time.Second))},
		} {
			if l, err := hasp.LockAny(t.Context(), locks...); err == nil || l != nil {
				t.Errorf("%s: %v, %v", what, l, err)
			}
		}
		_, err := hasp.LockAny(noContext, c.Mutex("a"))
		wantErr(t, err, hasp.ErrInvalid)
		for _, p := range []*hasp.Pool{c.Pool("p", 0), c.Pool("p", 1<<16+1), c.Pool("", 2), c.Pool("p", 2, hasp.FailOnDeadlock(1)), c.Pool("p", 2, hasp.Reentrant())} {
			_, err := p.Lock(t.Context())
			if err == nil {
				t.Errorf("%+v is no pool", p)
			}
		}
		if calls := b.taken(); len(calls) != 0 {
			t.Errorf("calls %v", calls)
		}

		lock(t, other, "a")
		if _, err := other.Semaphore("s", 3).Acquire(t.Context(), 3); err != nil {
			t.Fatal(err)
		}
		_, err = hasp.LockAny(t.Context(), c.Mutex("a"), c.Semaphore("s", 4).Locker(1))
		wantErr(t, err, hasp.ErrMismatch)
		time.Sleep(time.Second)
		if n := entries(t, other, "a"); n != 1 {
			t.Errorf("%d entries are left", n)
		}
	})
}

// A waiter for any of several is in no certain deadlock: here r reads past it as soon as it has the
// other lock. The control waits for the one alone.
func TestLockAnyIsNoCertainDeadlock(t *testing.T) {
	for _, choice := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			store := memlock.New()
			h, r, any, n := client(t, store.Backend()), client(t, store.Backend()), client(t, store.Backend()), client(t, store.Backend())
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			free := lock(t, n, "free")
			reads, err := h.RWMutex("m").RLock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			z := lock(t, r, "z")
			if choice {
				anyLater(ctx, any.Mutex("m"), any.Mutex("free"))
			} else {
				lockLater(ctx, any, "m")
			}
			synctest.Wait()
			got := make(chan result, 1)
			go func() { // behind the writer, while it holds z
				l, err := r.RWMutex("m").RLock(z.Bind(ctx))
				got <- result{l, err, time.Now()}
			}()
			synctest.Wait()
			lockLater(reads.Bind(ctx), h, "z")
			synctest.Wait()
			found, err := n.Deadlocks(t.Context())
			if err != nil || slices.ContainsFunc(found, func(d hasp.Deadlock) bool { return d.Certain }) == choice {
				t.Errorf("choice %t: %v, %v", choice, found, err)
			}
			if err := free.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if len(got) == 1 != choice {
				t.Errorf("choice %t: %d got on", choice, len(got))
			}
			cancel()
		})
	}
}

// Slots are given once, to all who ask, and are mutexes that others can take by name.
func TestPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, other := pair(t)
		const n = 32
		lock(t, other, "ids/7")
		seen := map[int]bool{7: true}
		for range n - 1 {
			l, err := c.Pool("ids", n).TryLock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if seen[l.Number] || l.Number < 0 || l.Number >= n || l.Name() != fmt.Sprintf("ids/%d", l.Number) {
				t.Errorf("slot %d (%s)", l.Number, l.Name())
			}
			seen[l.Number] = true
		}
		_, err := c.Pool("ids", n).TryLock(t.Context())
		wantErr(t, err, hasp.ErrBusy)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = c.Pool("ids", n).Lock(ctx)
		wantErr(t, err, context.DeadlineExceeded)
		wantErr(t, c.Pool("ids", n).Do(t.Context(), nil), hasp.ErrInvalid)
		err = c.Pool("others", 1).Do(t.Context(), func(ctx context.Context, slot *hasp.Slot) error {
			if l, ok := hasp.LeaseFrom(ctx); !ok || l != slot.Lease {
				t.Errorf("the context has %v", l)
			}
			return nil
		})
		wantErr(t, err, nil)
		none, err := c.Pool("", n).TryLock(t.Context())
		if err == nil || none != nil {
			t.Errorf("a pool without a name: %v, %v", none, err)
		}
		none.Unlock() // as of a nil lease
		wantErr(t, none.Release(t.Context()), hasp.ErrNotHeld)
	})
}

func ExamplePool() {
	ctx := context.Background()
	c := open()
	defer c.Close()

	// At most 1,024 workers at once, each with a number for itself.
	_ = c.Pool("worker", 1024).Do(ctx, func(ctx context.Context, slot *hasp.Slot) error {
		fmt.Println("has a worker id:", slot.Number >= 0 && slot.Number < 1024)
		return nil
	})
	// Output: has a worker id: true
}

func ExampleLockAny() {
	ctx := context.Background()
	c := open()
	defer c.Close()
	busy, err := c.Mutex("gpu0").Lock(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer busy.Unlock()

	l, err := hasp.LockAny(ctx, c.Mutex("gpu0"), c.Mutex("gpu1"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Unlock()
	fmt.Println("trains on", l.Name())
	// Output: trains on gpu1
}
