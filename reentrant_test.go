package hasp_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
)

// S10: taken again, the lock is held until the last lease is released, in any order.
func TestReentrant(t *testing.T) {
	for _, outerFirst := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			_, c, other := pair(t)
			m := c.Mutex("a", hasp.Reentrant())
			outer := lock(t, c, "a") // the first need not know that it will be taken again
			inner, err := m.Lock(outer.Context())
			if err != nil {
				t.Fatal(err)
			}
			again, err := m.TryLock(inner.Context())
			if err != nil {
				t.Fatal(err)
			}
			if inner.Token() != outer.Token() || inner.ID() != outer.ID() || entries(t, other, "a") != 1 {
				t.Errorf("token %d and %d, id %s and %s, %d entries",
					outer.Token(), inner.Token(), outer.ID(), inner.ID(), entries(t, other, "a"))
			}
			order := []*hasp.Lease{again, inner, outer}
			if outerFirst {
				order = []*hasp.Lease{outer, inner, again}
			}
			for i, l := range order {
				if _, err := other.Mutex("a").TryLock(t.Context()); !errors.Is(err, hasp.ErrBusy) {
					t.Fatalf("after %d releases: %v", i, err)
				}
				if !l.Held() || l.Context().Err() != nil {
					t.Fatalf("lease %d is not held any more: %v", i, l.Err())
				}
				if err := l.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				if l.Held() || l.Context().Err() == nil {
					t.Fatalf("lease %d is held after its release", i)
				}
				wantErr(t, l.Release(t.Context()), hasp.ErrNotHeld) // and takes nothing from the others
			}
			if n := entries(t, other, "a"); n != 0 {
				t.Errorf("%d entries left", n)
			}
		})
	}
}

// Without the option, and where a reader wants to become the writer, waiting would never end.
func TestNotReentrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, _ := pair(t)
		l := lock(t, c, "a")
		_, err := c.Mutex("a").Lock(l.Context())
		wantErr(t, err, hasp.ErrDeadlock)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = c.Mutex("a", hasp.Reentrant()).Lock(short) // another owner: it waits
		wantErr(t, err, context.DeadlineExceeded)
	})
	synctest.Test(t, func(t *testing.T) {
		_, c, other := pair(t)
		rw := c.RWMutex("a", hasp.Reentrant())
		reader, err := rw.RLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		second, err := rw.RLock(reader.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, lock := range []func() (*hasp.Lease, error){
			func() (*hasp.Lease, error) { return rw.Lock(second.Context()) },
			func() (*hasp.Lease, error) { return rw.TryLock(second.Context()) },
		} {
			_, err = lock()
			wantErr(t, err, hasp.ErrDeadlock)
		}
		// The other way round there is nothing to wait for.
		writer := lock(t, other, "b")
		under, err := other.RWMutex("b", hasp.Reentrant()).RLock(writer.Context())
		if err != nil {
			t.Fatal(err)
		}
		if under.Token() != writer.Token() {
			t.Error("the reader below the writer has a separate entry")
		}
	})
}

// A loss ends them all, with one event, and a lease that is lost is not taken again.
func TestReentrantLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rec recorder
		b, c, _ := pair(t, hasp.WithObserver(&rec))
		outer := lock(t, c, "a")
		inner, err := c.Mutex("a", hasp.Reentrant()).Lock(outer.Context())
		if err != nil {
			t.Fatal(err)
		}
		b.plan("keepalive", plan{err: errNetwork})
		<-inner.Context().Done()
		for _, l := range []*hasp.Lease{outer, inner} {
			wantErr(t, l.Err(), hasp.ErrLost)
			wantErr(t, l.Release(t.Context()), hasp.ErrLost)
		}
		kinds, _ := rec.take()
		n := 0
		for _, k := range kinds {
			if k == hasp.EventLost {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d losses told", n)
		}
		b.heal("keepalive")
		time.Sleep(2 * T)
		fresh, err := c.Mutex("a", hasp.Reentrant()).Lock(context.WithoutCancel(outer.Context()))
		if err != nil {
			t.Fatal(err)
		}
		if fresh.Token() <= outer.Token() {
			t.Errorf("token %d after %d", fresh.Token(), outer.Token())
		}
	})
}
