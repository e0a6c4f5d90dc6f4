package testkit

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp"
)

// Cycles locks and unlocks n times, 64 at once and 1,000 names by turns.
func Cycles(t testing.TB, c *hasp.Client, n int) {
	t.Helper()
	var begun atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for i := begun.Add(1); i <= int64(n); i = begun.Add(1) {
				l, err := c.Mutex(fmt.Sprint("name ", i%1000)).Lock(t.Context())
				if err == nil {
					err = l.Release(context.Background())
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// Medians are of the times to lock and unlock a name, n times by each of the clients. They take turns, so that a busy
// machine is so for each.
func Medians(t testing.TB, name string, n int, clients ...*hasp.Client) (medians []time.Duration) {
	t.Helper()
	took := make([][]time.Duration, len(clients))
	for range n {
		for i, c := range clients {
			began := time.Now()
			Release(t, Lock(t, c, name))
			took[i] = append(took[i], time.Since(began))
		}
	}
	for _, all := range took {
		slices.Sort(all)
		medians = append(medians, all[len(all)/2])
	}
	return medians
}
