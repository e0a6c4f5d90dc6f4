package hasp_test

import (
	"errors"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/memlock"
)

// A try that a quarantine refuses is not busy: no holder is known, and who took it
// for the sign that another does the work would have it done nowhere.
func TestQuarantineIsNotBusy(t *testing.T) {
	var rec recorder
	store := &testkit.Quarantined{Backend: memlock.New().Backend()}
	store.Left.Store(int64(time.Minute))
	c := client(t, store, hasp.WithObserver(&rec))
	sem := c.Semaphore("s", 3)
	for what, try := range map[string]func() error{
		"mutex":  func() error { _, err := c.Mutex("a").TryLock(t.Context()); return err },
		"writer": func() error { _, err := c.RWMutex("a").TryLock(t.Context()); return err },
		"reader": func() error { _, err := c.RWMutex("a").TryRLock(t.Context()); return err },
		"permit": func() error { _, err := sem.TryAcquire(t.Context(), 1); return err },
		"all":    func() error { _, err := hasp.TryLockAll(t.Context(), mutexes(c, "a", "b")...); return err },
		"any":    func() error { _, err := hasp.TryLockAny(t.Context(), mutexes(c, "a", "b")...); return err },
		"pool":   func() error { _, err := c.Pool("p", 4).TryLock(t.Context()); return err },
	} {
		t.Run(what, func(t *testing.T) {
			err := try()
			var busy *hasp.BusyError
			if !errors.Is(err, hasp.ErrQuarantine) || errors.Is(err, hasp.ErrBusy) || !errors.As(err, &busy) || busy.Quarantine != time.Minute {
				t.Errorf("%v", err)
			}
			if kinds, _ := rec.take(); len(kinds) != 1 || kinds[0] != hasp.EventFailed { // and told once, as a failure
				t.Errorf("events %v", kinds)
			}
		})
	}
	store.Left.Store(0)
	if l, err := c.Mutex("a").TryLock(t.Context()); err != nil || !l.Held() {
		t.Errorf("after it: %v", err)
	}
}

// Of several locks those that no quarantine refuses are tried still; and where the others are
// taken, what is told is the quarantine, in any order.
func TestQuarantineOfOneOfSeveral(t *testing.T) {
	b, _, other := pair(t)
	lock(t, other, "taken")
	quarantine := &testkit.Quarantined{Backend: b}
	quarantine.Only = "closed"
	quarantine.Left.Store(int64(time.Minute))
	c := client(t, quarantine)
	for _, names := range [][]string{{"closed", "taken"}, {"taken", "closed"}, {"taken", "closed", "taken too"}} {
		if len(names) == 3 {
			lock(t, other, "taken too")
		}
		_, err := hasp.TryLockAny(t.Context(), mutexes(c, names...)...)
		if !errors.Is(err, hasp.ErrQuarantine) || errors.Is(err, hasp.ErrBusy) {
			t.Errorf("%q: %v", names, err)
		}
	}
	for _, try := range []bool{true, false} {
		any := hasp.LockAny
		if try {
			any = hasp.TryLockAny
		}
		l, err := any(t.Context(), mutexes(c, "closed", "taken", "free")...)
		if err != nil || l.Name() != "free" {
			t.Fatalf("try %t: %v, %v", try, l, err)
		}
		l.Unlock()
	}
}
