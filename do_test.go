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
	"github.com/hasplock/hasp/memlock"
)

// Do holds, for every kind of lock, what its Lock would hold, tells it by the context, and gives it
// back.
func TestDoOfEachKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, other := pair(t)
		one := func(l hasp.Locker) func(context.Context, func(context.Context) error) error {
			return func(ctx context.Context, fn func(context.Context) error) error { return hasp.Do(ctx, l, fn) }
		}
		mine := errors.New("mine")
		kinds := map[string]struct {
			lock string
			do   func(context.Context, func(context.Context) error) error
			busy hasp.Locker // while it runs
			free hasp.Locker // although it runs; nil: none
		}{
			"mutex":     {"m", one(c.Mutex("m")), other.Mutex("m"), nil},
			"by name":   {"n", func(ctx context.Context, fn func(context.Context) error) error { return c.Do(ctx, "n", fn) }, other.Mutex("n"), nil},
			"writer":    {"rw", one(c.RWMutex("rw")), other.RWMutex("rw").RLocker(), nil},
			"reader":    {"rw", one(c.RWMutex("rw").RLocker()), other.RWMutex("rw"), other.RWMutex("rw").RLocker()},
			"semaphore": {"sem", one(c.Semaphore("sem", 3).Locker(2)), other.Semaphore("sem", 3).Locker(2), other.Semaphore("sem", 3).Locker(1)},
		}
		for kind, k := range kinds {
			err := k.do(t.Context(), func(ctx context.Context) error {
				l, ok := hasp.LeaseFrom(ctx)
				if !ok || !l.Held() || l.Token() == 0 || l.Name() != k.lock {
					t.Fatalf("%s: the context tells of %v, %t", kind, l, ok)
				}
				_, err := k.busy.TryLock(ctx)
				wantErr(t, err, hasp.ErrBusy)
				if k.free != nil {
					l, err := k.free.TryLock(t.Context())
					if err != nil {
						t.Fatalf("%s: %v", kind, err)
					}
					l.Release(t.Context())
				}
				return mine
			})
			wantErr(t, err, mine)
			if n := entries(t, other, k.lock); n != 0 {
				t.Errorf("%s: %d entries left", kind, n)
			}
			wantErr(t, k.do(t.Context(), nil), hasp.ErrInvalid)
			wantErr(t, k.do(noContext, func(context.Context) error { return nil }), hasp.ErrInvalid)
		}
	})
}

func TestDoAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, c, other := pair(t)
		locks := []hasp.Locker{c.Mutex("b"), c.Mutex("a"), c.Semaphore("s", 2).Locker(1)}
		err := hasp.DoAll(t.Context(), locks, func(ctx context.Context, m *hasp.MultiLease) error {
			if !m.Held() || len(m.Leases()) != 3 || m.Token("b") == 0 {
				t.Errorf("called with %v", m)
			}
			if l, ok := hasp.LeaseFrom(ctx); ok {
				t.Errorf("%s is one of several: its token could be handed to another's resource", l.Name())
			}
			for _, name := range []string{"a", "b"} {
				_, err := c.Mutex(name).Lock(ctx)
				wantErr(t, err, hasp.ErrDeadlock)
			}
			// Inside, one lock more is one lock again.
			return c.Do(ctx, "c", func(ctx context.Context) error {
				if l, ok := hasp.LeaseFrom(ctx); !ok || l.Name() != "c" {
					t.Errorf("the innermost is %v, %t", l, ok)
				}
				_, err := c.Mutex("a").Lock(ctx)
				wantErr(t, err, hasp.ErrDeadlock)
				return nil
			})
		})
		if err != nil {
			t.Fatal(err)
		}
		err = hasp.DoAll(t.Context(), locks, func(ctx context.Context, _ *hasp.MultiLease) error {
			evict(t, store, "b")
			<-ctx.Done()
			wantErr(t, context.Cause(ctx), hasp.ErrLost)
			return nil
		})
		wantErr(t, err, hasp.ErrLost)
		for _, name := range []string{"a", "b", "s"} {
			if n := entries(t, other, name); n != 0 {
				t.Errorf("%q has %d entries left", name, n)
			}
		}
		wantErr(t, hasp.DoAll(t.Context(), nil, func(context.Context, *hasp.MultiLease) error { return nil }), hasp.ErrInvalid)
		wantErr(t, hasp.DoAll(t.Context(), locks, nil), hasp.ErrInvalid)
		wantErr(t, hasp.Do(t.Context(), nil, func(context.Context) error { return nil }), hasp.ErrInvalid)
	})
}

// A context that holds nothing tells of nothing, and what it tells of may be over.
func TestLeaseFrom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, _ := pair(t)
		for _, ctx := range []context.Context{noContext, t.Context()} {
			if l, ok := hasp.LeaseFrom(ctx); ok {
				t.Errorf("it tells of %v", l)
			}
		}
		l := lock(t, c, "a")
		for _, ctx := range []context.Context{l.Context(), l.Bind(t.Context()), context.WithValue(l.Context(), noteKey{}, 1)} {
			if got, ok := hasp.LeaseFrom(ctx); !ok || got != l {
				t.Errorf("it tells of %v, %t", got, ok)
			}
		}
		work := l.Context()
		l.Release(t.Context())
		if got, ok := hasp.LeaseFrom(work); !ok || got.Held() {
			t.Errorf("after the release: %v, %t", got, ok)
		}
		m, err := hasp.LockAll(t.Context(), c.Mutex("a"), c.Mutex("b"))
		if err != nil {
			t.Fatal(err)
		}
		for _, ctx := range []context.Context{m.Context(), m.Bind(t.Context())} {
			if got, ok := hasp.LeaseFrom(ctx); ok {
				t.Errorf("it tells of one of several: %v", got)
			}
		}
		if got, ok := hasp.LeaseFrom(m.Leases()[1].Context()); !ok || got.Name() != "b" {
			t.Errorf("it tells of %v, %t", got, ok)
		}
	})
}

// A bound context ends with each of the two that it is bound to, and says which it was.
func TestBind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := errors.New("told to stop")
		ends := map[string]struct {
			end  func(l *hasp.Lease, b *spoiled, cancel context.CancelCauseFunc)
			want error
			held bool // afterwards
		}{
			"ctx":     {func(_ *hasp.Lease, _ *spoiled, cancel context.CancelCauseFunc) { cancel(mine) }, mine, true},
			"loss":    {func(l *hasp.Lease, b *spoiled, _ context.CancelCauseFunc) { evict(t, b, "a"); <-l.Context().Done() }, hasp.ErrLost, false},
			"release": {func(l *hasp.Lease, _ *spoiled, _ context.CancelCauseFunc) { l.Release(t.Context()) }, hasp.ErrNotHeld, false},
		}
		for what, x := range ends {
			b, c, _ := pair(t)
			l := lock(t, c, "a")
			m, err := hasp.LockAll(t.Context(), c.Mutex("m"), c.Mutex("n"))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), noteKey{}, "from the caller"))
			work, other, several := l.Bind(ctx), l.Bind(t.Context()), m.Bind(ctx)
			if work.Err() != nil || several.Err() != nil || work.Value(noteKey{}) != "from the caller" {
				t.Fatalf("%s: from the start %v, %v, %v", what, work.Err(), several.Err(), work.Value(noteKey{}))
			}
			x.end(l, b, cancel)
			<-work.Done()
			wantErr(t, context.Cause(work), x.want)
			if l.Held() != x.held || (other.Err() == nil) != x.held {
				t.Errorf("%s: held %t, bound to another context: %v", what, l.Held(), other.Err())
			}
			if what == "ctx" {
				<-several.Done()
				wantErr(t, context.Cause(several), mine)
			} else if several.Err() != nil {
				t.Errorf("%s: the end of one lease ends others: %v", what, several.Err())
			}
			cancel(nil)
		}
		_, c, _ := pair(t)
		wantErr(t, context.Cause(lock(t, c, "a").Bind(noContext)), hasp.ErrInvalid)
	})
}

// The deadline of the caller is that of the work: a client of another server sees it.
func TestBindKeepsTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, _ := pair(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := c.Do(ctx, "a", func(ctx context.Context) error {
			if at, ok := ctx.Deadline(); !ok || time.Until(at) != time.Second {
				t.Errorf("deadline %s, %t", at, ok)
			}
			<-ctx.Done()
			return ctx.Err()
		})
		wantErr(t, err, context.DeadlineExceeded)
	})
}

// What is held is known by both contexts: that of the lock, and that which was bound.
func TestBindKnowsWhatIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, _ := pair(t)
		outer := lock(t, c, "outer")
		inner, err := c.Mutex("inner").Lock(outer.Context())
		if err != nil {
			t.Fatal(err)
		}
		aside := lock(t, c, "aside")
		work := inner.Bind(aside.Bind(t.Context()))
		for _, name := range []string{"outer", "inner", "aside"} {
			_, err := c.Mutex(name).Lock(work)
			wantErr(t, err, hasp.ErrDeadlock)
		}
		// As others are told, who look for deadlocks.
		lock(t, c, "taken")
		ctx, cancel := context.WithTimeout(work, time.Second)
		defer cancel()
		lockLater(ctx, c, "taken")
		synctest.Wait()
		q, err := c.Inspect(t.Context(), "taken")
		if err != nil || len(q.Waiters) != 1 || len(q.Waiters[0].Holds) != 3 {
			t.Errorf("%+v, %v", q.Waiters, err)
		}
	})
}

// A leader binds a context for each request, for months: nothing of those that have ended may stay.
func TestBindLeavesNothing(t *testing.T) {
	c := open()
	defer c.Close()
	lease, err := c.Mutex("a").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	bind := func(n int) {
		for range n {
			ctx, cancel := context.WithCancel(t.Context())
			lease.Bind(ctx)
			cancel()
		}
	}
	bind(1000)
	before := heap()
	bind(100_000)
	grown := heap() - before
	for tries := 0; grown > 4<<20 && tries < 100; tries++ { // 100,000 contexts are 40 MB
		time.Sleep(10 * time.Millisecond) // each goes by a goroutine, which may not have run yet
		grown = heap() - before
	}
	if grown > 4<<20 {
		t.Errorf("%d bytes are left of 100,000 contexts that have ended", grown)
	}
}

// A function that returns the reason for which its context ended is told the loss once.
func TestDoTellsTheLossOnce(t *testing.T) {
	c, err := hasp.New(memlock.New().Backend())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for what, do := range map[string]func(fn func(context.Context) error) error{
		"one": func(fn func(context.Context) error) error { return c.Do(t.Context(), "a", fn) },
		"some": func(fn func(context.Context) error) error {
			return hasp.DoAll(t.Context(), []hasp.Locker{c.Mutex("a")}, func(ctx context.Context, _ *hasp.MultiLease) error { return fn(ctx) })
		},
	} {
		err := do(func(ctx context.Context) error {
			q, err := c.Inspect(t.Context(), "a")
			if err != nil {
				return err
			}
			if err := c.Evict(t.Context(), "a", q.Holders[0].ID, "test"); err != nil {
				return err
			}
			<-ctx.Done()
			return fmt.Errorf("in the middle: %w", context.Cause(ctx))
		})
		if !errors.Is(err, hasp.ErrLost) || strings.Count(err.Error(), "lost: ") != 1 {
			t.Errorf("%s: %v", what, err)
		}
	}
}
