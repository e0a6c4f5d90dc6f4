package hasp_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/hasptest"
	"github.com/hasplock/hasp/memlock"
)

// S4: the store answers again between the deadline and its own expiry. A holder that
// trusted its lease until the deadline has the safety margin before another client holds.
func TestMarginOutlastsRecovery(t *testing.T) {
	for _, back := range []time.Duration{0, time.Millisecond, 300 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			store := memlock.New()
			b := &spoiled{Backend: store.Backend()}
			c, other := client(t, b), client(t, store.Backend())
			l := lock(t, c, "a")
			next := lockLater(t.Context(), other, "a")
			synctest.Wait()
			b.plan("keepalive", plan{err: errNetwork})
			b.plan("close", plan{err: errNetwork})
			<-l.Context().Done()
			lost := time.Now()
			time.Sleep(back)
			b.heal("keepalive")
			b.heal("close")
			r := <-next
			if r.err != nil {
				t.Fatal(r.err)
			}
			if guard := r.at.Sub(lost); guard < T/10 {
				t.Errorf("store back %s after the deadline: the next holds %s after the last belief, less than the guard of %s", back, guard, T/10)
			}
		})
	}
}

// S7: asked again, the store says that the entry is gone. Where the store may have forgotten it,
// somebody else may have held meanwhile.
func TestReleaseAtAStoreThatForgets(t *testing.T) {
	for _, forgets := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := &spoiled{Backend: memlock.New().Backend()}
			c := client(t, forgetful{b, forgets})
			l := lock(t, c, "a")
			b.plan("leave", plan{loseAnswer: errNetwork, times: 1})
			err := l.Release(t.Context())
			if forgets {
				wantErr(t, err, hasp.ErrUnknown)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

type forgetful struct {
	*spoiled
	forgets bool
}

func (b forgetful) Traits() driver.Traits {
	traits := b.spoiled.Traits()
	traits.Forgets = b.forgets
	return traits
}

// A release that the store confirms succeeds, although the client is closed meanwhile.
func TestReleaseWhileClosing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, _ := pair(t)
		l := lock(t, c, "a")
		slow := make(chan struct{})
		b.plan("leave", plan{late: slow, times: 1})
		released := make(chan error, 1)
		go func() { released <- l.Release(t.Context()) }()
		synctest.Wait() // the store has removed the entry, its answer is on the way
		closed := make(chan error, 1)
		go func() { closed <- c.Close() }()
		synctest.Wait()
		close(slow)
		if err := <-released; err != nil {
			t.Errorf("confirmed, and told as %v", err)
		}
		<-closed
	})
}

// One node of a cluster is silent. What it has is lost in time; the rest goes on.
func TestPartialRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &laggard{Backend: memlock.New().Backend()}
		c := client(t, b)
		good, bad := lock(t, c, "good"), lock(t, c, "bad")
		began := time.Now()
		id := bad.ID()
		b.late.Store(&id)
		if d := bad.Deadline(); d.Sub(began) > trust {
			t.Errorf("deadline in %s", d.Sub(began))
		}
		select {
		case <-bad.Context().Done():
		case <-time.After(time.Minute):
			t.Error("never lost")
		}
		if took := time.Since(began); took > trust || took < trust-T/3 {
			t.Errorf("lost after %s, trusted for %s", took, trust)
		}
		var lost *hasp.LostError
		if !errors.As(bad.Err(), &lost) || lost.Reason != hasp.ReasonExpired || !errors.Is(lost, errNetwork) {
			t.Errorf("lost with %v", bad.Err())
		} else if confirmed := lost.Since.Sub(lost.Confirmed); confirmed != trust {
			t.Errorf("last confirmed %s before the loss, trusted for %s: that was the other lock", confirmed, trust)
		}
		time.Sleep(5 * T)
		if !good.Held() {
			t.Errorf("what was renewed is lost, too: %v", good.Err())
		}
		b.late.Store(nil)
		if err := good.Release(t.Context()); err != nil {
			t.Error(err)
		}
		// What is left of the other is removed, so that it can be taken again.
		lock(t, c, "bad")
	})
}

// An entry that is late and renewed again in time is not lost.
func TestLateRenewalCatchesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &laggard{Backend: memlock.New().Backend()}
		c := client(t, b)
		l := lock(t, c, "a")
		id := l.ID()
		for range 5 {
			b.late.Store(&id)
			time.Sleep(T / 3) // the renewal before was up to a third of T earlier, the next is as much later
			b.late.Store(nil)
			time.Sleep(2 * T / 3)
			if !l.Held() {
				t.Fatal(l.Err())
			}
		}
	})
}

// laggard renews all entries but one, and says so.
type laggard struct {
	driver.Backend
	late atomic.Pointer[string]
}

func (b *laggard) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	s, granted, err := b.Backend.Open(ctx, o)
	return &laggardSession{s, b, time.Now()}, granted, err
}

type laggardSession struct {
	driver.Session
	b       *laggard
	renewed time.Time // the late entry
}

func (s *laggardSession) KeepAlive(ctx context.Context) (time.Duration, error) {
	sent := time.Now()
	granted, err := s.Session.KeepAlive(ctx)
	if id := s.b.late.Load(); id != nil && err == nil {
		return 0, &driver.PartialRenewal{
			Granted: granted, Err: errNetwork,
			Late: map[string]time.Duration{*id: granted - sent.Sub(s.renewed)},
		}
	}
	s.renewed = sent
	return granted, err
}

// The store may end a session while the answer of Open is on its way. It was a nil pointer in the
// background once; now another one is opened.
func TestSessionEndsWhileOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := hasptest.New()
		b := &spoiled{Backend: store.Backend()}
		c := client(t, b)
		slow := make(chan struct{})
		b.plan("open", plan{late: slow, times: 1})
		r := lockLater(t.Context(), c, "a")
		synctest.Wait()
		store.Forget()
		synctest.Wait() // the loss has been handled
		close(slow)
		if got := <-r; got.err != nil || !got.lease.Held() {
			t.Errorf("%v", got.err)
		}
	})
}
