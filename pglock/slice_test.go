package pglock_test

import (
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/testkit"
)

// L2: a slice that ends at the moment at which the server grants the lock leaves no lock behind that
// nobody knows of. (The statement fails, and a lock of the connection's stays granted: the next
// slice took it a second time, one release left it held, and nobody got it while that connection
// lived.)
func TestSliceEndsAsItsTurnComes(t *testing.T) {
	t.Parallel()
	server := private(t)
	for _, params := range []string{"strategy=advisory&fence=off", "strategy=advisory"} {
		t.Run(params, func(t *testing.T) {
			storeURL := with(server.URL(), params)
			testkit.Release(t, testkit.Lock(t, client(t, storeURL), params)) // the tables are made
			ctx := testkit.Context(t)
			var turns sync.WaitGroup
			for i := range 4 {
				c := sliced(t, storeURL, time.Duration(1+i%2)*time.Millisecond)
				turns.Go(func() {
					for range 150 {
						l, err := c.Mutex(params).Lock(ctx)
						if err != nil {
							t.Error(err)
							return
						}
						time.Sleep(time.Millisecond) // about a slice
						if err := l.Release(ctx); err != nil {
							t.Error(err)
						}
					}
				})
			}
			turns.Wait()
		})
	}
}
