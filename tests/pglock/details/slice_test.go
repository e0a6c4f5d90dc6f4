package pglock_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// L2: a slice that ends at the moment at which the server grants the lock leaves no unknown lock
// behind. (The statement fails, and a lock of the connection's stays granted: the next
// slice took it a second time, one release left it held, and no client got it while that connection
// lived.)
func TestSliceEndsAsItsTurnComes(t *testing.T) {
	t.Parallel()
	server := private(t)
	for _, params := range []string{"strategy=advisory&fence=off", "strategy=advisory"} {
		t.Run(params, func(t *testing.T) {
			storeURL := sqlkit.With(server.URL(), params)
			testkit.Release(t, testkit.Lock(t, client(t, storeURL), params)) // the tables are made
			// The test ends when no client has got the lock for so long: with slices as short as
			// these, a turn may take a busy machine a tenth of a second.
			ctx, giveUp := context.WithCancelCause(t.Context())
			defer giveUp(nil)
			stuck := time.AfterFunc(testkit.Patience, func() { giveUp(fmt.Errorf("no client got the lock for %s", testkit.Patience)) })
			defer stuck.Stop()
			enough := time.Now().Add(testkit.Patience / 2)
			var turns sync.WaitGroup
			var taken atomic.Int64
			for i := range 4 {
				c := sliced(t, storeURL, time.Duration(10+i%2)*time.Millisecond)
				turns.Go(func() {
					for n := 0; n < 150 && time.Now().Before(enough); n++ {
						l, err := c.Mutex(params).Lock(ctx)
						if err != nil {
							t.Errorf("%v (%v)", err, context.Cause(ctx))
							return
						}
						stuck.Reset(testkit.Patience)
						taken.Add(1)
						time.Sleep(10 * time.Millisecond) // about a slice
						if err := l.Release(ctx); err != nil {
							t.Error(err)
						}
					}
				})
			}
			turns.Wait()
			t.Logf("%d turns", taken.Load())
		})
	}
}
