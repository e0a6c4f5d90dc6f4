package hasp_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// recorder keeps what it is told.
type recorder struct {
	mu     sync.Mutex
	events []hasp.Event
}

func (r *recorder) Observe(e hasp.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func (r *recorder) take() (kinds []hasp.EventKind, events []hasp.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	events, r.events = r.events, nil
	for _, e := range events {
		kinds = append(kinds, e.Kind)
	}
	return kinds, events
}

type noteKey struct{}

func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rec recorder
		b, c, other := pair(t, hasp.WithObserver(nil), hasp.WithObserver(new(recorder)), hasp.WithObserver(&rec))

		l, err := c.Mutex("a").Lock(context.WithValue(t.Context(), noteKey{}, "from the caller"))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		kinds, events := rec.take()
		if !slices.Equal(kinds, []hasp.EventKind{hasp.EventAcquired, hasp.EventReleased}) {
			t.Fatalf("events %v", kinds)
		}
		for _, e := range events {
			if e.Context == nil || e.Context.Value(noteKey{}) != "from the caller" && e.Kind == hasp.EventAcquired {
				t.Errorf("%s has not the caller's context", e.Kind)
			}
			if e.Name != "a" || e.Backend != "mem://" || e.Token != l.Token() {
				t.Errorf("%+v", e)
			}
			if e.Kind == hasp.EventAcquired && (e.Op != "lock" || e.Units != driver.Whole || e.Capacity != driver.Whole) {
				t.Errorf("%s: %q of %d/%d", e.Kind, e.Op, e.Units, e.Capacity)
			}
		}
		if events[1].Hold != time.Second {
			t.Errorf("held for %s", events[1].Hold)
		}

		holder := lock(t, other, "a")
		_, err = c.Mutex("a").TryLock(t.Context())
		wantErr(t, err, hasp.ErrBusy)
		waiting := lockLater(t.Context(), c, "a")
		time.Sleep(3 * time.Second)
		if err := holder.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		l = (<-waiting).lease
		kinds, events = rec.take()
		if !slices.Equal(kinds, []hasp.EventKind{hasp.EventFailed, hasp.EventWaiting, hasp.EventRenewed, hasp.EventAcquired}) {
			t.Fatalf("events %v", kinds)
		}
		if events[1].Place != 1 {
			t.Errorf("the place is %d", events[1].Place)
		}
		if events[3].Wait != 3*time.Second {
			t.Errorf("waited %s", events[3].Wait)
		}

		b.plan("keepalive", plan{err: errNetwork})
		<-l.Context().Done()
		synctest.Wait()
		kinds, events = rec.take()
		if kinds[0] != hasp.EventRenewed || events[0].Remaining <= 0 || events[0].Err == nil {
			t.Errorf("%+v", events[0])
		}
		last := slices.Index(kinds, hasp.EventLost)
		if last < 0 {
			t.Fatalf("events %v", kinds)
		}
		wantErr(t, events[last].Err, hasp.ErrLost)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		b.plan("open", plan{err: errNetwork})
		if _, err := c.Mutex("a").Lock(ctx); err == nil {
			t.Fatal("locked on a dead store")
		}
		kinds, _ = rec.take()
		if !slices.Equal(kinds, []hasp.EventKind{hasp.EventFailed}) {
			t.Errorf("events %v", kinds)
		}
	})
}

// The slog adapter is loud about losses only.
func TestSlogObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var buf bytes.Buffer
		log := slog.New(slog.NewTextHandler(&buf, nil))
		b, c, _ := pair(t, hasp.WithObserver(hasp.SlogObserver(log)))
		for range 100 {
			if err := lock(t, c, "a").Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if buf.Len() != 0 {
			t.Errorf("a hundred ordinary locks were logged: %s", buf.String())
		}
		l := lock(t, c, "a")
		b.plan("keepalive", plan{err: errNetwork})
		<-l.Context().Done()
		synctest.Wait()
		if s := buf.String(); !strings.Contains(s, "level=ERROR") || !strings.Contains(s, "lock=a") || !strings.Contains(s, "expired") {
			t.Errorf("log: %s", s)
		}
	})
}

// A waiter is logged with its place.
func TestSlogPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var buf bytes.Buffer
		log := slog.New(slog.NewTextHandler(&buf, &slog.HandlerOptions{Level: slog.LevelDebug}))
		_, c, other := pair(t, hasp.WithObserver(hasp.SlogObserver(log)))
		holder := lock(t, other, "a")
		waiting := lockLater(t.Context(), c, "a")
		synctest.Wait()
		if err := holder.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-waiting
		lines := strings.Split(buf.String(), "\n")
		if !strings.Contains(lines[0], `msg="hasp: waiting" store=mem:// lock=a place=1`) || strings.Contains(lines[1], "place") {
			t.Errorf("log: %s", buf.String())
		}
	})
}
