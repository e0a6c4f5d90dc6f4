package hasptest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/hasptest"
	"github.com/hasplock/hasp/internal/testkit"
)

func newClient(t *testing.T, s *hasptest.Store) *hasp.Client {
	t.Helper()
	return s.Client(t, hasp.WithTTL(10*time.Second))
}

func reason(l *hasp.Lease) hasp.Reason {
	var lost *hasp.LostError
	errors.As(l.Err(), &lost)
	if lost == nil {
		return ""
	}
	return lost.Reason
}

// The test in the package's documentation.
func TestStopsAtALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := hasptest.New()
		done := make(chan error)
		client := store.Client(t)
		go func() { done <- work(t.Context(), client, func() {}) }()
		synctest.Wait() // until it works
		store.Lose("report")
		if err := <-done; !errors.Is(err, hasp.ErrLost) {
			t.Error(err)
		}
	})
}

func TestLose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := hasptest.New()
		l := testkit.Lock(t, newClient(t, store), "a")
		other := testkit.Lock(t, newClient(t, store), "b")
		if n := store.Lose("a"); n != 1 || l.Held() || reason(l) != hasp.ReasonDenied {
			t.Errorf("%d lost, held %t, %v", n, l.Held(), l.Err())
		}
		if n := store.Lose("a"); n != 0 || !other.Held() {
			t.Errorf("%d lost, the other is held: %t", n, other.Held())
		}
	})
}

func TestForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := hasptest.New()
		c := newClient(t, store)
		l := testkit.Lock(t, c, "a")
		store.Forget()
		if l.Held() || reason(l) != hasp.ReasonSessionGone {
			t.Errorf("held %t, %v", l.Held(), l.Err())
		}
		if next := testkit.Lock(t, c, "a"); next.Token() <= l.Token() {
			t.Errorf("token %d after %d", next.Token(), l.Token())
		}
	})
}

// Trust ends before the store lets the next in, on the clock of the bubble.
func TestCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := hasptest.New()
		l := testkit.Lock(t, newClient(t, store), "a")
		other := newClient(t, store)
		waits := make(chan time.Time, 1)
		go func() {
			_, _ = other.Mutex("a").Lock(t.Context())
			waits <- time.Now()
		}()
		synctest.Wait()
		began := time.Now()
		heal := store.Cut()
		store.Cut() // no deeper
		<-l.Context().Done()
		if at := time.Since(began); at > 9*time.Second || reason(l) != hasp.ReasonExpired {
			t.Errorf("lost after %s: %v", at, l.Err())
		}
		if _, err := other.Inspect(short(t), "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the store answered: %v", err)
		}
		heal()
		heal()
		if at := (<-waits).Sub(began); at < 9*time.Second {
			t.Errorf("the next after %s", at)
		}
	})
}

// The store hands the lock on when the holder's time is over, also while it is cut off; but a
// waiter cannot hear of it.
func TestCutTellsNoGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := hasptest.New()
		testkit.Lock(t, newClient(t, store), "a")
		time.Sleep(5 * time.Second)
		other := newClient(t, store) // trusted for longer than the holder's time in the store
		testkit.Lock(t, other, "b")
		granted := make(chan time.Time, 1)
		go func() {
			if _, err := other.Mutex("a").Lock(t.Context()); err == nil {
				granted <- time.Now()
			}
		}()
		synctest.Wait()
		heal := store.Cut()
		for name, err := range other.Names(short(t), "") {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a name in the store: %q, %v", name, err)
			}
		}
		time.Sleep(time.Minute)
		if len(granted) != 0 {
			t.Error("granted while nothing can be heard")
		}
		healed := time.Now()
		heal()
		if at := <-granted; at.Before(healed) {
			t.Errorf("granted %s before the store is back", healed.Sub(at))
		}
	})
}

func short(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	t.Cleanup(cancel)
	return ctx
}

// A client that is cut off does not hear from the store that its session has ended there: the next
// request tells it. So a holder finds out by itself, also one that a pause has kept from looking
// until the TTL was over.
func TestCutTellsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := hasptest.New()
		told := 0
		s, ttl, err := store.Backend().Open(t.Context(), driver.SessionOptions{TTL: 10 * time.Second, Gone: func(string, error) { told++ }})
		if err != nil {
			t.Fatal(err)
		}
		heal := store.Cut()
		time.Sleep(2 * ttl)
		synctest.Wait()
		if told != 0 {
			t.Errorf("told %d times by a store that is cut off", told)
		}
		heal()
		if _, err := s.KeepAlive(t.Context()); !errors.Is(err, driver.ErrGone) {
			t.Errorf("a renewal when the session has ended: %v", err)
		}
		if _, ttl, err = store.Backend().Open(t.Context(), driver.SessionOptions{TTL: 10 * time.Second, Gone: func(string, error) { told++ }}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * ttl)
		synctest.Wait()
		if told != 1 {
			t.Errorf("told %d times by a store that is not", told)
		}
	})
}

func TestRefuseAndDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := hasptest.New()
		c := newClient(t, store)
		full := errors.New("disk full")
		store.Refuse("a", full)
		if _, err := c.Mutex("a").Lock(t.Context()); !errors.Is(err, full) {
			t.Errorf("not refused: %v", err)
		}
		testkit.Lock(t, c, "b")
		store.Refuse("", full)
		if _, err := c.Mutex("c").TryLock(t.Context()); !errors.Is(err, full) {
			t.Errorf("not refused: %v", err)
		}
		store.Refuse("", nil)
		store.Refuse("a", nil)
		store.Delay(2 * time.Second)
		began := time.Now()
		testkit.Lock(t, c, "a")
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("took %s", took)
		}
		store.Delay(0)
	})
}
