package queues_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/queues"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/hasptest"
	"github.com/hasplock/hasp/memlock"
)

// All names are read, in their order. A store that has fallen silent costs one bound, and not one
// for each name.
func TestAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := hasptest.New()
		c := store.Client(t)
		for i := range 50 {
			if _, err := c.Mutex(fmt.Sprintf("n/%02d", 49-i)).Lock(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		all, err := queues.All(t.Context(), c, "n/", time.Second)
		if err != nil || len(all) != 50 {
			t.Fatalf("%d queues, %v", len(all), err)
		}
		for i, q := range all {
			if q.Name != fmt.Sprintf("n/%02d", i) || len(q.Holders) != 1 {
				t.Errorf("%d: %+v", i, q)
			}
		}
		names, err := queues.Names(t.Context(), c, "", time.Second)
		if err != nil {
			t.Fatal(err)
		}
		store.Cut()
		began := time.Now()
		err = queues.Read(t.Context(), c, names, time.Second, func(int, hasp.Queue) { t.Error("an answer") })
		if took := time.Since(began); err == nil || took > time.Second {
			t.Errorf("%v after %s", err, took)
		}
		if _, err = queues.Names(t.Context(), c, "", time.Second); err == nil || time.Since(began) > 2*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

// remembering is a store that remembers many names of which none is held, and answers slowly.
type remembering struct{ driver.Backend }

func (remembering) Names(ctx context.Context, prefix string, yield func(string) bool) error {
	for range 100 {
		time.Sleep(time.Second / 2)
		driver.Progress(ctx)
	}
	yield("held")
	return ctx.Err()
}

// The bound begins anew with each answer, and not with each name.
func TestNamesOfSlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := hasp.New(remembering{memlock.New().Backend()})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		names, err := queues.Names(t.Context(), c, "", time.Second)
		if err != nil || len(names) != 1 {
			t.Errorf("%q, %v", names, err)
		}
	})
}
