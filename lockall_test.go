package hasp_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
)

func names(m *hasp.MultiLease) (names []string) {
	for _, l := range m.Leases() {
		names = append(names, l.Name())
	}
	return names
}

// All kinds in one, sorted, each once, the stronger side of a name that is there twice.
func TestLockAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, other := pair(t)
		reader, err := other.RWMutex("r").RLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		m, err := hasp.LockAll(t.Context(),
			c.Semaphore("s", 3).Locker(2), c.RWMutex("r").RLocker(), c.Mutex("b"), c.RWMutex("b").RLocker(), c.Mutex("a"), c.Mutex("a"))
		if err != nil {
			t.Fatal(err)
		}
		if got := names(m); len(got) != 4 || got[0] != "a" || got[1] != "b" || got[2] != "r" || got[3] != "s" {
			t.Errorf("taken: %v", got)
		}
		if !m.Held() || m.Err() != nil || m.Context().Err() != nil || !m.Deadline().After(time.Now()) {
			t.Errorf("held %t, %v", m.Held(), m.Err())
		}
		for i, l := range m.Leases() {
			if m.Token(l.Name()) != l.Token() || l.Token() == 0 {
				t.Errorf("token %d", m.Token(l.Name()))
			}
			if n := entries(t, other, l.Name()); n != 1 && l.Name() != "r" {
				t.Errorf("lock %d has %d entries", i, n)
			}
		}
		// What is held is known to be held, with each of the locks.
		for _, name := range names(m) {
			if name != "s" {
				_, err := c.Mutex(name).Lock(m.Context())
				wantErr(t, err, hasp.ErrDeadlock)
			}
		}
		_, err = other.RWMutex("b").TryRLock(t.Context()) // as writer
		wantErr(t, err, hasp.ErrBusy)
		if err := m.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if m.Held() || m.Context().Err() == nil {
			t.Error("held after the release")
		}
		wantErr(t, m.Release(t.Context()), hasp.ErrNotHeld)
		for _, name := range []string{"a", "b", "s"} {
			if n := entries(t, other, name); n != 0 {
				t.Errorf("%q has %d entries left", name, n)
			}
		}
		if !reader.Held() {
			t.Error(reader.Err())
		}
	})
}

// All or nothing: a try, and a wait that ends, leave nothing behind.
func TestLockAllFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, other := pair(t)
		lock(t, other, "b")
		_, err := hasp.TryLockAll(t.Context(), c.Mutex("c"), c.Mutex("b"), c.Mutex("a"))
		wantErr(t, err, hasp.ErrBusy)
		var le *hasp.LockError
		if !errors.As(err, &le) || le.Name != "b" {
			t.Errorf("%v does not name the lock", err)
		}
		synctest.Wait()
		if entries(t, other, "a") != 0 || entries(t, other, "c") != 0 {
			t.Error("something is left of the try")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*T)
		defer cancel()
		_, err = hasp.LockAll(ctx, c.Mutex("c"), c.Mutex("b"), c.Mutex("a"))
		wantErr(t, err, context.DeadlineExceeded)
		synctest.Wait()
		if entries(t, other, "a") != 0 || entries(t, other, "b") != 1 || entries(t, other, "c") != 0 {
			t.Error("something is left of the wait")
		}
	})
}

// What it had is free at once where one of the locks cannot be had, also with MinHold: that is for
// work, and none was done. Where the caller holds the lock already, MinHold is that lease's.
func TestLockAllFailsWithMinHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, other := pair(t)
		lock(t, other, "b")
		min := hasp.MinHold(time.Hour)
		for range 2 {
			_, err := hasp.TryLockAll(t.Context(), c.Mutex("a", min), c.Mutex("b", min))
			wantErr(t, err, hasp.ErrBusy)
			synctest.Wait()
			if n := entries(t, other, "a"); n != 0 {
				t.Fatalf("%d entries are left", n)
			}
		}
		a, err := c.Mutex("a", min).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = hasp.TryLockAll(a.Context(), c.Mutex("a", min, hasp.Reentrant()), c.Mutex("b"))
		wantErr(t, err, hasp.ErrBusy)
		released := make(chan error, 1)
		go func() { released <- a.Release(t.Context()) }() // whichever of a's two leases ends last waits for the hour
		time.Sleep(time.Hour - time.Second)
		if n := entries(t, other, "a"); n != 1 {
			t.Errorf("%d entries before the hour is over", n)
		}
		time.Sleep(2 * time.Second)
		if n := entries(t, other, "a"); n != 0 {
			t.Errorf("%d entries after it", n)
		}
		if err := <-released; err != nil {
			t.Error(err)
		}
	})
}

// One loss is the loss of all, told once, and the others are there until the release.
func TestLockAllLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, c, other := pair(t)
		m, err := hasp.LockAll(t.Context(), c.Mutex("a"), c.Mutex("b"), c.Mutex("c"))
		if err != nil {
			t.Fatal(err)
		}
		work := m.Context()
		evict(t, store, "b")
		<-m.Context().Done()
		<-work.Done()
		wantErr(t, context.Cause(work), hasp.ErrLost)
		wantErr(t, m.Err(), hasp.ErrLost)
		if m.Held() {
			t.Error("held")
		}
		if entries(t, other, "a") != 1 || entries(t, other, "c") != 1 {
			t.Error("the others are gone although the work may not have ended")
		}
		wantErr(t, m.Release(t.Context()), hasp.ErrLost)
		if entries(t, other, "a") != 0 || entries(t, other, "c") != 0 {
			t.Error("the others are left")
		}
	})
}

// A lock that is lost while the next is waited for is taken again: the result is whole.
func TestLockAllLostWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, c, other := pair(t)
		l := lock(t, other, "b")
		got := make(chan *hasp.MultiLease, 1)
		go func() {
			m, err := hasp.LockAll(t.Context(), c.Mutex("a"), c.Mutex("b"))
			if err != nil {
				t.Error(err)
			}
			got <- m
		}()
		synctest.Wait()
		evict(t, store, "a")
		time.Sleep(time.Second)
		if entries(t, other, "a") != 1 || entries(t, other, "b") != 2 {
			t.Errorf("%d and %d entries", entries(t, other, "a"), entries(t, other, "b"))
		}
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if m := <-got; !m.Held() {
			t.Error(m.Err())
		}
	})
}

func TestLockAllWrong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		_, err := hasp.LockAll(t.Context(), c.Mutex("orders"), other.Mutex("stock"))
		wantErr(t, err, hasp.ErrInvalid)
		if text := fmt.Sprint(err); !strings.Contains(text, "orders") || !strings.Contains(text, "stock") || !strings.Contains(text, "two clients") {
			t.Errorf("locks of two clients: %v", err)
		}
		for _, locks := range [][]hasp.Locker{
			{}, {nil}, {c.Semaphore("s", 3).Locker(1), c.Semaphore("s", 3).Locker(1)}, {c.Mutex("s"), c.Semaphore("s", 3).Locker(1)},
			{c.Semaphore("s", 3).Locker(4)}, {c.Mutex("a"), c.Mutex("a\x00")}, {c.Mutex("\xff"), c.Mutex("b")},
		} {
			if _, err := hasp.LockAll(t.Context(), locks...); !errors.Is(err, hasp.ErrInvalid) {
				t.Errorf("%v", err)
			}
		}
		_, err = hasp.LockAll(noContext, c.Mutex("a"))
		wantErr(t, err, hasp.ErrInvalid)
		if n := b.opens.Load(); n != 0 {
			t.Error("the store was asked")
		}
		wantErr(t, (*hasp.MultiLease)(nil).Release(t.Context()), hasp.ErrNotHeld)
	})
}

// Callers that name the same locks in different orders never wait for each other.
func TestLockAllNoDeadlock(t *testing.T) {
	c := open()
	defer c.Close()
	inside := map[string]*int{"a": new(int), "b": new(int), "c": new(int), "d": new(int)} // guarded by the locks
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for range 50 {
				var locks []hasp.Locker
				for _, n := range rand.Perm(4)[:2+rand.IntN(3)] {
					locks = append(locks, c.Mutex("abcd"[n:n+1]))
				}
				m, err := hasp.LockAll(context.Background(), locks...)
				if err != nil {
					t.Error(err)
					return
				}
				for _, name := range names(m) {
					if *inside[name]++; *inside[name] != 1 {
						t.Errorf("%d inside %s", *inside[name], name)
					}
				}
				for _, name := range names(m) {
					*inside[name]--
				}
				if err := m.Release(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}
