package hasp_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
)

// The next holder comes no sooner than MinHold after the grant, and the lease ends at once.
func TestMinHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, other := pair(t)
		began := time.Now()
		l, err := c.Mutex("a", hasp.MinHold(3*T)).Lock(t.Context()) // renewed in the meantime
		if err != nil {
			t.Fatal(err)
		}
		next := lockLater(t.Context(), other, "a")
		released := make(chan error)
		go func() { released <- l.Release(t.Context()) }()
		synctest.Wait()
		if l.Held() || l.Context().Err() == nil {
			t.Error("held after the release")
		}
		if err := <-released; err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 3*T {
			t.Errorf("the release took until %s", took)
		}
		if r := <-next; r.err != nil || r.at.Sub(began) != 3*T {
			t.Errorf("next after %s: %v", r.at.Sub(began), r.err)
		}
	})
}

// L3: a caller that does not wait gets its answer, and the lock goes when it is time.
func TestMinHoldInBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, other := pair(t)
		l, err := c.Mutex("a", hasp.MinHold(T)).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantErr(t, l.Release(ctx), hasp.ErrUnknown, context.DeadlineExceeded)
		if took := time.Since(began); took != time.Second {
			t.Errorf("returned after %s", took)
		}
		if r := <-lockLater(t.Context(), other, "a"); r.err != nil || r.at.Sub(began) != T {
			t.Errorf("next after %s: %v", r.at.Sub(began), r.err)
		}
	})
}

// O1: a holder over its time is told why, first; the next comes a guard time later.
func TestMaxHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, other := pair(t)
		began := time.Now()
		l, err := c.Mutex("a", hasp.MaxHold(25*time.Second)).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		next := lockLater(t.Context(), other, "a")
		<-l.Context().Done()
		if at := time.Since(began); at != 25*time.Second {
			t.Errorf("ended after %s", at)
		}
		var lost *hasp.LostError
		if !errors.As(context.Cause(l.Context()), &lost) || lost.Reason != hasp.ReasonOverdue || l.Held() {
			t.Errorf("cause %v", context.Cause(l.Context()))
		}
		if r := <-next; r.err != nil || r.at.Sub(began) != 26*time.Second {
			t.Errorf("next after %s, the guard is 1s: %v", r.at.Sub(began), r.err)
		}
		wantErr(t, l.Release(t.Context()), hasp.ErrLost)
	})
}

// A holder that gets on is left alone; one that hangs is told, and the lock moves on.
func TestStallAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, other := pair(t)
		l, err := c.Mutex("a", hasp.StallAfter(4*time.Second)).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		next := lockLater(t.Context(), other, "a")
		for range 20 {
			time.Sleep(3 * time.Second)
			l.Progress()
		}
		if !l.Held() {
			t.Fatal(l.Err())
		}
		if left := time.Until(l.Deadline()); left != 4*time.Second {
			t.Errorf("deadline in %s", left)
		}
		last := time.Now()
		<-l.Context().Done()
		var lost *hasp.LostError
		if at := time.Since(last); at != 4*time.Second || !errors.As(l.Err(), &lost) || lost.Reason != hasp.ReasonStalled {
			t.Errorf("ended after %s: %v", at, l.Err())
		}
		l.Progress() // too late to count
		if r := <-next; r.err != nil || r.at.Sub(last) != 5*time.Second || l.Held() {
			t.Errorf("next after %s: %v", r.at.Sub(last), r.err)
		}
	})
}

// The limits are looked up at each call: no timer needs to have run.
func TestLimitWithoutTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, _ := pair(t)
		m := c.Mutex("a", hasp.MaxHold(time.Second), hasp.StallAfter(time.Minute))
		l, err := m.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		// This goroutine runs at the same instant as the timer, in any order.
		if l.Held() {
			t.Error("held when its time was over")
		}
		next, err := m.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := next.Release(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour) // a released lease is not lost later
		wantErr(t, next.Err(), hasp.ErrNotHeld)
	})
}

func TestWrongLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, _ := pair(t)
		for _, opts := range [][]hasp.LockOption{
			{hasp.MinHold(0)}, {hasp.MaxHold(-1)}, {hasp.StallAfter(0)},
			{hasp.MinHold(2 * time.Second), hasp.MaxHold(time.Second)},
		} {
			_, err := c.Mutex("a", opts...).Lock(t.Context())
			wantErr(t, err, hasp.ErrInvalid)
		}
		if b.opens.Load() != 0 {
			t.Error("the store was asked")
		}
	})
}
