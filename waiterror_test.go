package hasp_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/hasptest"
)

// A Lock that its deadline ends says who holds the lock, whether it waits in the store or behind
// others of its process. One that is cancelled, or whose store is silent, does not ask or wait for
// that.
func TestTimeoutNamesTheHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := hasptest.New()
		client := func() *hasp.Client {
			c, err := hasp.New(store.Backend(), hasp.WithTTL(time.Hour))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			return c
		}
		held, err := client().Mutex("a", hasp.Note("make deploy")).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c := client()
		lock := func(d time.Duration) (time.Duration, error) {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			began := time.Now()
			_, err := c.Mutex("a").Lock(ctx)
			return time.Since(began), err
		}
		behind := make(chan error, 1)
		go func() {
			time.Sleep(time.Second) // until the other is in the queue
			_, err := lock(3 * time.Second)
			behind <- err
		}()
		took, err := lock(10 * time.Second)
		for _, err := range []error{err, <-behind} {
			var w *hasp.BusyError
			if !errors.As(err, &w) || w.ID != held.ID() || w.Holder.Note != "make deploy" || w.Since.IsZero() ||
				!errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "deadline exceeded; held by ") {
				t.Errorf("timed out: %v", err)
			}
		}
		if took != 10*time.Second {
			t.Errorf("it took %s", took)
		}

		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := c.Mutex("a").Lock(ctx); errors.As(err, new(*hasp.BusyError)) || !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}

		heal := make(chan func(), 1)
		time.AfterFunc(2*time.Second, func() { heal <- store.Cut() })
		if took, err := lock(5 * time.Second); errors.As(err, new(*hasp.BusyError)) || took > 5*time.Second+100*time.Millisecond {
			t.Errorf("with a silent store: %v after %s", err, took)
		}
		(<-heal)()
	})
}

// What the store refuses one that waits is told at once, and once, and is the error when the wait
// is over: only somebody else can cure it. A request that the deadline ends hides it not.
func TestRefusedWhileWaiting(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var rec recorder
			b, c, other := pair(t, hasp.WithObserver(&rec))
			held := lock(t, other, "a")
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			b.plan("wait", plan{err: errNetwork, before: time.Second})
			got := lockLater(ctx, c, "a")
			synctest.Wait()
			refused := fmt.Errorf("%w: no permission", driver.ErrRefused)
			b.plan("enqueue", plan{err: refused})
			time.Sleep(20 * time.Second)
			if hangs { // and ctx ends while it does
				b.plan("enqueue", plan{before: time.Hour})
			}
			_, events := rec.take()
			told := 0
			for _, e := range events {
				if e.Kind == hasp.EventWaiting && errors.Is(e.Err, hasp.ErrRefused) && e.Name == "a" {
					told++
				}
			}
			if told != 1 {
				t.Errorf("told %d times: %+v", told, events)
			}
			r := <-got
			if !errors.Is(r.err, hasp.ErrRefused) || !errors.Is(r.err, context.DeadlineExceeded) {
				t.Errorf("hangs %t: %v", hangs, r.err)
			}
			b.heal("enqueue")
			b.heal("wait")
			held.Unlock()
			lock(t, c, "a").Unlock()
		})
	}
}

// A waiter whose entry is gone asks anew at once, and with pauses from then on: also if the store
// refuses the new entry, as one does that has forgotten the first and has no memory for another.
func TestRefusedAfterAnEntryIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rec recorder
		b, c, other := pair(t, hasp.WithObserver(&rec))
		held := lock(t, other, "a")
		b.plan("wait", plan{before: time.Second, err: driver.ErrGone, times: 1})
		ctx, cancel := context.WithCancel(t.Context())
		got := lockLater(ctx, c, "a")
		synctest.Wait()
		b.plan("enqueue", plan{err: driver.ErrRefused, times: 1000})
		time.Sleep(20 * time.Second)
		_, events := rec.take()
		asked := 0
		for _, e := range events {
			if e.Kind == hasp.EventRequeued {
				asked++
			}
		}
		if asked < 3 || asked > 40 {
			t.Errorf("asked %d times in 20 s", asked)
		}
		cancel()
		<-got
		held.Unlock()
	})
}
