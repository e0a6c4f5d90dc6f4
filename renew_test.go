package hasp_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// Each of these tests runs in fake time: the moments are exact.

// S5, invariant 5: without renewals trust ends at s + T*0.99 - T/10, and the store hands
// the lock on at s + T, not before. The waiter's grant therefore comes after the loss.
func TestLossComesBeforeTheNextGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		l := lock(t, c, "a")
		began := time.Now()
		b.plan("keepalive", plan{err: errNetwork})
		next := lockLater(t.Context(), other, "a")

		<-l.Context().Done()
		if got := time.Since(began); got != trust {
			t.Errorf("lost after %s, want %s", got, trust)
		}
		var lost *hasp.LostError
		if !errors.As(l.Err(), &lost) || lost.Reason != hasp.ReasonExpired || !lost.Confirmed.Equal(began) {
			t.Errorf("Err() = %+v, want Expired and confirmed at the start", l.Err())
		}
		wantErr(t, l.Err(), hasp.ErrLost, errNetwork)
		if l.Held() {
			t.Error("held after the loss")
		}
		wantErr(t, context.Cause(l.Context()), hasp.ErrLost)
		wantErr(t, l.Release(t.Context()), hasp.ErrLost)

		r := <-next
		if r.err != nil {
			t.Fatal(r.err)
		}
		if r.lease.Token() <= l.Token() {
			t.Errorf("token %d after %d", r.lease.Token(), l.Token())
		}
		if got := r.at.Sub(began); got < trust {
			t.Errorf("next grant after %s, before the loss", got)
		}
	})
}

// The control of the test above: had the client trusted for the whole of what the store
// was asked for, counted from an answer that took 2 s, both would have held at once.
func TestTrustIsCountedFromTheSending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, _ := pair(t)
		b.plan("open", plan{after: 2 * time.Second})
		began := time.Now()
		l := lock(t, c, "a")
		if got := time.Since(began); got != 2*time.Second {
			t.Fatalf("the answer took %s", got)
		}
		b.plan("keepalive", plan{err: errNetwork})
		<-l.Context().Done()
		if got := time.Since(began); got != trust {
			t.Errorf("lost %s after the request was sent, want %s", got, trust)
		}
	})
}

// A renewal that never returns, and does not even mind its context, cannot delay the loss.
func TestLossDoesNotDependOnTheRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, _ := pair(t)
		stuck := make(chan struct{})
		l := lock(t, c, "a")
		began := time.Now()
		b.plan("keepalive", plan{hang: stuck})
		<-l.Context().Done()
		if got := time.Since(began); got != trust {
			t.Errorf("lost after %s, want %s", got, trust)
		}
		close(stuck) // the answer arrives after all, and is a good one
		synctest.Wait()
		if l.Held() {
			t.Error("S6: a lost lease was held again")
		}
	})
}

// S6: an answer that arrives after the deadline does not bring the lease back, although
// the store did renew it.
func TestLateRenewalDoesNotResurrect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		l := lock(t, c, "a")
		late := make(chan struct{})
		time.AfterFunc(trust+time.Millisecond, func() { close(late) })
		b.plan("keepalive", plan{late: late, times: 1})
		<-l.Context().Done()
		time.Sleep(time.Second)
		if l.Held() {
			t.Error("held after the loss")
		}
		// Nothing of the old session may block the next holder for longer than the TTL.
		began := time.Now()
		if r := <-lockLater(t.Context(), other, "a"); r.err != nil || r.at.Sub(began) > T {
			t.Errorf("next grant after %s: %v", r.at.Sub(began), r.err)
		}
	})
}

// A held lease lasts as long as renewals succeed, one every third of the TTL.
func TestRenewalsKeepTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, _ := pair(t)
		l := lock(t, c, "a")
		time.Sleep(10 * time.Minute)
		if !l.Held() {
			t.Fatal(l.Err())
		}
		if got, want := b.keepAlives.Load(), int64(10*time.Minute/(T/3)); got < want-1 || got > want+1 {
			t.Errorf("%d renewals in 10 minutes, want about %d", got, want)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A connection that hangs takes half of the trust that is left, not all: the attempts
// after it still have time, and a partition shorter than the trust loses nothing.
func TestHungRenewalLeavesTimeForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, _ := pair(t)
		l := lock(t, c, "a")
		b.plan("keepalive", plan{before: time.Hour, times: 1})
		time.Sleep(time.Minute)
		if !l.Held() {
			t.Error(l.Err())
		}
	})
}

// O1: the store says that the session is gone: loss at the next renewal, with that reason.
func TestSessionGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, _ := pair(t)
		l := lock(t, c, "a")
		began := time.Now()
		b.plan("keepalive", plan{err: driver.ErrGone})
		<-l.Context().Done()
		if got := time.Since(began); got > T/3 {
			t.Errorf("lost after %s, later than the next renewal", got)
		}
		var lost *hasp.LostError
		if !errors.As(l.Err(), &lost) || lost.Reason != hasp.ReasonSessionGone {
			t.Errorf("Err() = %v", l.Err())
		}
		b.heal("keepalive")
		if err := lock(t, c, "b").Release(t.Context()); err != nil { // a new session, unasked
			t.Error(err)
		}
	})
}

// O1: one entry was removed by an operator: that lease is lost at once, the other lives.
func TestEntryDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		l, kept := lock(t, c, "a"), lock(t, c, "b")
		if err := b.Backend.(driver.Evicter).Evict(t.Context(), "a", l.ID(), ""); err != nil {
			t.Fatal(err)
		}
		<-l.Context().Done()
		var lost *hasp.LostError
		if !errors.As(l.Err(), &lost) || lost.Reason != hasp.ReasonDenied {
			t.Errorf("Err() = %v", l.Err())
		}
		if next := lock(t, other, "a"); next.Token() <= l.Token() {
			t.Errorf("token %d after %d", next.Token(), l.Token())
		}
		wantErr(t, l.Release(t.Context()), hasp.ErrLost)
		if entries(t, other, "a") != 1 {
			t.Error("S6: the release of the lost lease removed the next holder's entry")
		}
		if !kept.Held() {
			t.Error(kept.Err())
		}
	})
}

// The trust comes from what the store granted, not from what was asked.
func TestGrantedTTLCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _, _ := pair(t)
		c := client(t, shortGrant{b})
		l := lock(t, c, "a")
		began := time.Now()
		b.plan("keepalive", plan{err: errNetwork})
		<-l.Context().Done()
		const granted = 4 * time.Second
		if got, want := time.Since(began), granted-granted/100-granted/10; got != want {
			t.Errorf("lost after %s, want %s", got, want)
		}
	})
}

// shortGrant is a store that bounds the TTL, as ZooKeeper does.
type shortGrant struct{ driver.Backend }

func (b shortGrant) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	o.TTL = 4 * time.Second
	return b.Backend.Open(ctx, o)
}

// A grant too short for the guard is refused, not trusted for next to nothing.
func TestGrantTooShortForTheMargin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _, _ := pair(t)
		c := client(t, shortGrant{b}, hasp.WithSafetyMargin(3*time.Second))
		_, err := c.Mutex("a").Lock(t.Context())
		wantErr(t, err, hasp.ErrInvalid)
	})
}

// L2: a waiter whose session died with its place queues up again as soon as
// the store is back, and gets the lock.
func TestWaiterOutlivesAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		holder := lock(t, other, "a")
		waiting := lockLater(t.Context(), c, "a")
		synctest.Wait()
		b.plan("keepalive", plan{err: errNetwork})
		b.plan("open", plan{err: errNetwork})
		time.Sleep(5 * time.Minute)
		if n := entries(t, other, "a"); n != 1 {
			t.Fatalf("L4: %d entries while the waiter is cut off, want the holder's alone", n)
		}
		b.heal("keepalive")
		b.heal("open")
		healed := time.Now()
		if err := holder.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		r := <-waiting
		if r.err != nil {
			t.Fatal(r.err)
		}
		if got := r.at.Sub(healed); got > 2*time.Second {
			t.Errorf("L2: acquired %s after the partition healed", got)
		}
	})
}

// L7: however many wait, a dead server is dialled less than ten times a second, and in the
// long run every second or two.
func TestDeadServerIsNotHammered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		holders := map[string]*hasp.Lease{}
		ctx, cancel := context.WithCancel(t.Context())
		for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			holders[name] = lock(t, other, name)
			for range 8 {
				go func() { _, _ = c.Mutex(name).Lock(ctx) }()
			}
		}
		synctest.Wait()
		b.plan("keepalive", plan{err: errNetwork})
		b.plan("open", plan{err: errNetwork})
		time.Sleep(T)
		before := b.opens.Load()
		time.Sleep(time.Minute)
		if got := b.opens.Load() - before; got > 80 || got < 25 {
			t.Errorf("%d dials in a minute, want about 40", got)
		}
		cancel()
		synctest.Wait()
	})
}

// A client that is closed during a renewal, or whose session the store ends then, has no failed
// renewal to tell of; one whose deadline passes then has.
func TestEndDuringARenewal(t *testing.T) {
	for _, c := range []struct {
		what  string
		end   func(*hasp.Client, *spoiled)
		alarm bool
	}{
		{"closed", func(c *hasp.Client, _ *spoiled) { _ = c.Close() }, false},
		{"gone", func(_ *hasp.Client, b *spoiled) { b.opts.Gone("", driver.ErrGone) }, false},
		{"late", func(*hasp.Client, *spoiled) {}, true},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rec := &recorder{}
				b, client, _ := pair(t, hasp.WithObserver(rec))
				l := lock(t, client, "a")
				b.plan("keepalive", plan{after: time.Minute})
				time.Sleep(T/3 + time.Second) // into the first renewal
				c.end(client, b)
				<-l.Context().Done()
				synctest.Wait()
				_, events := rec.take()
				failed := slices.ContainsFunc(events, func(e hasp.Event) bool { return e.Kind == hasp.EventRenewed && e.Err != nil })
				if failed != c.alarm {
					t.Errorf("told: %+v", events)
				}
			})
		})
	}
}
