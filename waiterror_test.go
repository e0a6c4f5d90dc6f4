package hasp_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
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
