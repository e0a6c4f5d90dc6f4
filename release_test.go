package hasp_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// S7, the good cases: confirmed at once, and confirmed by asking again after a lost answer.
func TestReleaseConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		l := lock(t, c, "a")
		work := l.Context()
		b.plan("leave", plan{loseAnswer: errNetwork, times: 2})
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if n := entries(t, other, "a"); n != 0 {
			t.Errorf("%d entries left", n)
		}
		wantErr(t, context.Cause(work), hasp.ErrNotHeld)
		if l.Held() {
			t.Error("held after the release")
		}
		if err := l.Err(); errors.Is(err, hasp.ErrLost) {
			t.Errorf("a release is reported as a loss: %v", err)
		}
		wantErr(t, l.Release(t.Context()), hasp.ErrNotHeld)
		wantErr(t, (*hasp.Lease)(nil).Release(t.Context()), hasp.ErrNotHeld)
		wantErr(t, (*hasp.Term)(nil).Release(t.Context()), hasp.ErrNotHeld)
		wantErr(t, (*hasp.Term)(nil).Publish(t.Context(), nil), hasp.ErrNotHeld)
	})
}

// A second Release of the same lease leaves the next holder alone.
func TestSecondReleaseHarmsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, _ := pair(t)
		l := lock(t, c, "a")
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		next := lock(t, c, "a") // same client, same session
		wantErr(t, l.Release(t.Context()), hasp.ErrNotHeld)
		if !next.Held() || entries(t, c, "a") != 1 {
			t.Error("S6: the retried release removed the next lock of the same session")
		}
	})
}

// S7: no answer before the caller gave up. Unknown, not held any more, and gone soon.
func TestReleaseUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		l := lock(t, c, "a")
		b.plan("leave", plan{before: time.Hour})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		err := l.Release(ctx)
		wantErr(t, err, hasp.ErrUnknown, context.DeadlineExceeded)
		if errors.Is(err, hasp.ErrLost) {
			t.Errorf("%v: unknown is not lost", err)
		}
		if got := time.Since(began); got != time.Second {
			t.Errorf("returned after %s", got)
		}
		if l.Held() {
			t.Error("held after the release")
		}
		b.heal("leave")
		r := <-lockLater(t.Context(), other, "a")
		if r.err != nil || r.at.Sub(began) > 2*T+time.Second {
			t.Errorf("next holder after %s: %v", r.at.Sub(began), r.err)
		}
	})
}

// The caller's context has ended already, or is nil: the lock is given back all the same.
func TestReleaseWithEndedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, other := pair(t)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		wantErr(t, lock(t, c, "a").Release(ended), hasp.ErrUnknown, context.Canceled)
		wantErr(t, lock(t, c, "b").Release(noContext), hasp.ErrUnknown, hasp.ErrInvalid)
		synctest.Wait()
		if n := entries(t, other, "a") + entries(t, other, "b"); n != 0 {
			t.Errorf("%d entries left behind", n)
		}
	})
}

// S7: the deadline passes while the release is under way. The store removed the entry, but
// it is unknown whether it was still ours.
func TestReleaseAnsweredAfterTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, _ := pair(t)
		l := lock(t, c, "a")
		b.plan("keepalive", plan{err: errNetwork})
		late := make(chan struct{})
		time.AfterFunc(trust+time.Millisecond, func() { close(late) })
		b.plan("leave", plan{late: late})
		wantErr(t, l.Release(t.Context()), hasp.ErrLost)
	})
}

// S7: the store has no such entry, although no loss was reported.
func TestReleaseFindsTheLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, _ := pair(t)
		l := lock(t, c, "a")
		b.plan("leave", plan{err: driver.ErrGone})
		err := l.Release(t.Context())
		var lost *hasp.LostError
		if !errors.As(err, &lost) || lost.Reason != hasp.ReasonDenied {
			t.Errorf("Release = %v", err)
		}
	})
}

// A server that does not answer cannot hold Release longer than the lease lasts; nor can one
// whose driver renews nothing any more, and so without asking it, for ever.
func TestReleaseIsBoundedByTheLease(t *testing.T) {
	const hour = time.Hour
	for name, x := range map[string]struct {
		leave, keepalive plan
		bound            time.Duration
	}{
		"all fails":                       {plan{err: errNetwork}, plan{err: errNetwork}, T},
		"release fails, renewal succeeds": {plan{err: errNetwork}, plan{}, 3*T + time.Second},
		"release hangs, renewal succeeds": {plan{before: hour}, plan{}, 3*T + time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, c, _ := pair(t)
				l := lock(t, c, "a")
				b.plan("leave", x.leave)
				b.plan("keepalive", x.keepalive)
				began := time.Now()
				ctx, cancel := context.WithTimeout(context.Background(), hour)
				defer cancel()
				wantErr(t, l.Release(ctx), hasp.ErrUnknown)
				if got := time.Since(began); got > x.bound {
					t.Errorf("returned after %s", got)
				}
				b.heal("leave")
			})
		})
	}
}

func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		mine := errors.New("mine")
		wantErr(t, c.Do(t.Context(), "a", func(context.Context) error { return mine }), mine)

		ctx, cancel := context.WithCancel(t.Context())
		err := c.Do(ctx, "a", func(ctx context.Context) error {
			if n := entries(t, other, "a"); n != 1 {
				t.Errorf("%d entries while the function runs", n)
			}
			cancel()
			<-ctx.Done()
			return ctx.Err()
		})
		wantErr(t, err, context.Canceled)
		if errors.Is(err, hasp.ErrUnknown) || entries(t, other, "a") != 0 {
			t.Errorf("not released properly when the caller's context ended: %v", err)
		}

		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			_ = c.Do(t.Context(), "a", func(context.Context) error { panic("oops") })
		}()
		if n := entries(t, other, "a"); n != 0 {
			t.Errorf("%d entries after a panic", n)
		}

		b.plan("keepalive", plan{err: errNetwork})
		err = c.Do(t.Context(), "a", func(ctx context.Context) error {
			<-ctx.Done()
			wantErr(t, context.Cause(ctx), hasp.ErrLost)
			return nil // did not notice, or did not care
		})
		wantErr(t, err, hasp.ErrLost)
	})
}

// Close: leases are lost and say why, waiters return, nothing is left in the store, and
// later calls say that the client is closed.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, other := pair(t)
		l := lock(t, c, "a")
		blocker := lock(t, other, "b")
		waiting := lockLater(t.Context(), c, "b")
		synctest.Wait()
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		var lost *hasp.LostError
		if !errors.As(l.Err(), &lost) || lost.Reason != hasp.ReasonClosed {
			t.Errorf("Err() = %v", l.Err())
		}
		wantErr(t, l.Release(t.Context()), hasp.ErrLost)
		wantErr(t, (<-waiting).err, hasp.ErrClosed)
		if n := entries(t, other, "a"); n != 0 {
			t.Errorf("%d entries left under a", n)
		}
		if n := entries(t, other, "b"); n != 1 || !blocker.Held() {
			t.Errorf("%d entries under b, want the other client's", n)
		}
		_, err := c.Mutex("a").Lock(t.Context())
		wantErr(t, err, hasp.ErrClosed)
		_, err = c.Inspect(t.Context(), "a")
		wantErr(t, err, hasp.ErrClosed)
		for _, err := range c.Names(t.Context(), "") {
			wantErr(t, err, hasp.ErrClosed)
		}
		if err := c.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
	})
}

// A server that hangs cannot hold Close, in any phase.
func TestCloseOfAHungStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, _ := pair(t)
		lock(t, c, "a")
		b.plan("close", plan{before: time.Hour})
		began := time.Now()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if got := time.Since(began); got > 6*time.Second {
			t.Errorf("Close took %s", got)
		}

		b2, c2, _ := pair(t)
		b2.plan("open", plan{before: time.Hour})
		waiting := lockLater(context.Background(), c2, "a")
		synctest.Wait()
		began = time.Now()
		if err := c2.Close(); err != nil {
			t.Error(err)
		}
		if got := time.Since(began); got > 6*time.Second {
			t.Errorf("Close during Open took %s", got)
		}
		wantErr(t, (<-waiting).err, hasp.ErrClosed)
	})
}
