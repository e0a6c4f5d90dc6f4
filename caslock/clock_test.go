package caslock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp/driver"
)

// steppedWhileSlow holds a lock whose holder's wall clock steps by five minutes just before a
// renewal, the writes being late, while another client waits; it returns what the judge has found.
func steppedWhileSlow(t *testing.T, step time.Duration, watch bool, f faulty) (wrong []string, held bool) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 10 * time.Second
		s := newSimulation(ttl)
		a, b := s.host("a", watch, f), s.host("b", watch, faulty{})
		ca, _ := a.client(t)
		cb, _ := b.client(t)
		defer ca.Close()
		defer cb.Close()
		defer close(a.down)
		l, err := a.lock(t.Context(), ca, "n")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			if l, err := b.lock(ctx, cb, "n"); err == nil {
				l.Release(t.Context())
			}
		}()
		time.Sleep(ttl / 4)
		a.setFate(func(string, string) fate { return fate{out: 1800 * time.Millisecond} })
		a.setClock(step)
		time.Sleep(2 * ttl)
		held = l.Held()
		cancel()
		l.Release(t.Context())
		<-done
		wrong = s.wrong
	})
	return wrong, held
}

// A step of the holder's wall clock takes no lock away, and gives it to no other client.
func TestWallClockSteps(t *testing.T) {
	for _, step := range []time.Duration{5 * time.Minute, -5 * time.Minute} {
		for _, watch := range []bool{false, true} {
			if wrong, held := steppedWhileSlow(t, step, watch, faulty{}); len(wrong) > 0 || !held {
				t.Errorf("step %s, watch %t: held %t; %s", step, watch, held, strings.Join(wrong, "\n"))
			}
		}
	}
	if wrong, _ := steppedWhileSlow(t, 5*time.Minute, true, faulty{believesWall: true}); len(wrong) == 0 {
		t.Error("a driver that believes the wall clock is not caught: this test shows nothing")
	}
}

// A lock moves to another server whose clock differs by more than a TTL.
func TestAdoptByOtherClock(t *testing.T) {
	for _, off := range []time.Duration{time.Hour, -time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			s := newSimulation(10 * time.Second)
			a, b := s.host("a", true, faulty{}), s.host("b", true, faulty{})
			b.setClock(off)
			_, ba := a.client(t)
			_, bb := b.client(t)
			enter := func(b *backend, id string) (driver.Session, *ticket) {
				session, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: s.ttl, Gone: func(string, error) {}})
				if err != nil {
					t.Fatal(err)
				}
				return session, session.Ticket(driver.Request{Name: "n", ID: id, Units: driver.Whole, Capacity: driver.Whole}).(*ticket)
			}
			_, old := enter(ba, "old")
			v, err := old.Enqueue(t.Context())
			if err != nil || !v.Held {
				t.Fatal(v, err)
			}
			_, next := enter(bb, "new")
			if got, err := next.Adopt(t.Context(), "old", v.Token); err != nil || !got.Held || got.Token != v.Token {
				t.Errorf("clocks differ by %s: %+v, %v", off, got, err)
			}
			if err := old.renew(t.Context()); !errors.Is(err, driver.ErrGone) {
				t.Errorf("the old owner's renewal: %v", err)
			}
			ba.Close()
			bb.Close()
		})
	}
}

// The end of an entry that was not renewed in time is told before its record is freed.
func TestToldBeforeFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSimulation(10 * time.Second)
		_, b := s.host("a", true, faulty{}).client(t)
		defer b.Close()
		told := 0
		session, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: s.ttl, Gone: func(id string, _ error) {
			if told++; s.records["n"].ID != id {
				t.Errorf("%s is told when its record is that of %q", id, s.records["n"].ID)
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		v, err := session.Ticket(driver.Request{Name: "n", ID: "one", Units: driver.Whole, Capacity: driver.Whole}).Enqueue(t.Context())
		if err != nil || !v.Held {
			t.Fatal(v, err)
		}
		time.Sleep(s.ttl)
		session.KeepAlive(t.Context())
		if told != 1 || s.records["n"].ID != "" {
			t.Errorf("told %d times, and the record is that of %q", told, s.records["n"].ID)
		}
	})
}
