package hasp_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// Unlock gives back what ctx does not let Release give back, once.
func TestUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rec recorder
		_, c, other := pair(t, hasp.WithObserver(&rec))
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), noteKey{}, "from the caller"))
		l, err := c.Mutex("a").Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		m, err := hasp.LockAll(ctx, c.Mutex("b"), c.Mutex("c"))
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		rec.take()
		l.Unlock()
		m.Unlock()
		for _, name := range []string{"a", "b", "c"} {
			if n := entries(t, other, name); n != 0 {
				t.Errorf("%q has %d entries left", name, n)
			}
		}
		l.Unlock() // as after a Release whose error was looked at
		m.Unlock()
		(*hasp.Lease)(nil).Unlock()
		(*hasp.MultiLease)(nil).Unlock()
		(*hasp.Term)(nil).Unlock()
		new(hasp.Term).Unlock()
		_, events := rec.take()
		if len(events) != 3 {
			t.Fatalf("%d events", len(events))
		}
		for _, e := range events {
			if e.Kind != hasp.EventReleased || e.Err != nil || e.Context.Value(noteKey{}) != "from the caller" {
				t.Errorf("%s, %v, %v", e.Kind, e.Err, e.Context.Value(noteKey{}))
			}
		}
	})
}

// A store that does not answer holds Unlock up for five seconds, and the observers hear of it.
func TestUnlockIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rec recorder
		b, c, other := pair(t, hasp.WithObserver(&rec), hasp.WithTTL(time.Minute))
		l := lock(t, c, "a")
		rec.take()
		b.plan("leave", plan{before: time.Hour})
		began := time.Now()
		l.Unlock()
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("took %s", took)
		}
		_, events := rec.take()
		if len(events) != 1 || events[0].Kind != hasp.EventReleased {
			t.Fatalf("told %+v", events)
		}
		wantErr(t, events[0].Err, hasp.ErrUnknown)
		b.heal("leave")
		time.Sleep(time.Hour)
		if n := entries(t, other, "a"); n != 0 {
			t.Error("it was not released in the background")
		}
	})
	// The time that the holder itself has asked for is not part of the five seconds.
	synctest.Test(t, func(t *testing.T) {
		_, c, other := pair(t)
		l, err := c.Mutex("a", hasp.MinHold(time.Minute)).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		l.Unlock()
		if took := time.Since(began); took != time.Minute || entries(t, other, "a") != 0 {
			t.Errorf("took %s, %d entries left", took, entries(t, other, "a"))
		}
	})
}

// A loss is told once to those who observe, and otherwise logged: the deferred call has no error to
// return.
func TestUnlockAfterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var buf bytes.Buffer
		before := slog.Default()
		slog.SetDefault(slog.New(slog.NewTextHandler(&buf, nil)))
		defer slog.SetDefault(before)

		var rec recorder
		b, c, _ := pair(t, hasp.WithObserver(&rec))
		l := lock(t, c, "a")
		evict(t, b, "a")
		l.Unlock()
		kinds, _ := rec.take()
		if !slices.Equal(kinds, []hasp.EventKind{hasp.EventAcquired, hasp.EventLost}) || buf.Len() != 0 {
			t.Errorf("told %v, logged %q", kinds, buf.String())
		}

		b, c, _ = pair(t)
		l = lock(t, c, "a")
		evict(t, b, "a")
		if buf.Len() != 0 {
			t.Errorf("logged although the program may look by itself: %q", buf.String())
		}
		l.Unlock()
		if s := buf.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, `level=WARN msg="hasp: lost before its release"`) || !strings.Contains(s, "lock=a") || !strings.Contains(s, "denied") {
			t.Errorf("logged %q", s)
		}
		lock(t, c, "b").Unlock()
		if s := buf.String(); strings.Count(s, "\n") != 1 {
			t.Errorf("an ordinary release was logged: %q", s)
		}
	})
}

// A release that failed is a warning, which says so if it has found a loss.
func TestSlogObserverOfAFailedRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var buf bytes.Buffer
		b, c, _ := pair(t, hasp.WithObserver(hasp.SlogObserver(slog.New(slog.NewTextHandler(&buf, nil)))))
		l := lock(t, c, "a")
		b.plan("leave", plan{before: time.Hour, times: 1})
		l.Unlock()
		if s := buf.String(); !strings.Contains(s, "level=WARN") || !strings.Contains(s, "released") || !strings.Contains(s, "unknown") {
			t.Errorf("log: %s", s)
		}
		buf.Reset()
		l = lock(t, c, "b")
		b.plan("leave", plan{err: driver.ErrGone}) // the store has no such entry, and has not said so before
		l.Unlock()
		if s := buf.String(); !strings.Contains(s, "level=WARN") || !strings.Contains(s, "lost before its release") {
			t.Errorf("log: %s", s)
		}
	})
}
