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

// BenchmarkCycles locks and unlocks 1,000 names by turns, 64 at once, b.N times, and shows how large the table of
// names is, in kB, after a tenth of that and in the end.
func BenchmarkCycles(b *testing.B, c *hasp.Client, size func() float64) {
	b.Helper()
	cycles(b, c, 1000) // makes the names
	cycles(b, c, b.N/10)
	b.ReportMetric(size(), "early-kB")
	cycles(b, c, b.N-b.N/10)
	b.ReportMetric(size(), "late-kB")
}

func cycles(b *testing.B, c *hasp.Client, n int) {
	b.Helper()
	var begun atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for i := begun.Add(1); i <= int64(n); i = begun.Add(1) {
				l, err := c.Mutex(fmt.Sprint("name ", i%1000)).Lock(b.Context())
				if err == nil {
					err = l.Release(context.Background())
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// ManyNames is a store with a million names that were last used five hours ago, and one without.
type ManyNames struct {
	Without, With *hasp.Client
	Fill          func()                        // makes the million
	Sweep         func(retention time.Duration) // one sweep, as there is one in a minute
	Left          func() bool                   // some of the million are there
}

// Benchmark shows what a lock takes in either store, what a sweep takes that finds nothing to do, and how long all those
// take together that forget the million.
func (m ManyNames) Benchmark(b *testing.B) {
	b.Helper()
	medians(b, 100, m.Without, m.With) // the tables, and connections
	m.Fill()
	took := medians(b, 2000, m.Without, m.With)
	b.ReportMetric(float64(took[0].Microseconds()), "none-us")
	b.ReportMetric(float64(took[1].Microseconds()), "million-us")
	began := time.Now()
	m.Sweep(24 * time.Hour)
	b.ReportMetric(float64(time.Since(began).Microseconds()), "idle-sweep-us")
	began = time.Now()
	for m.Left() {
		m.Sweep(time.Hour)
	}
	b.ReportMetric(time.Since(began).Seconds(), "forget-s")
	b.ReportMetric(0, "ns/op")
}

// medians are of the times to lock and unlock, n times by each of the clients. They take turns, so that a busy machine is
// so for each.
func medians(b *testing.B, n int, clients ...*hasp.Client) (medians []time.Duration) {
	b.Helper()
	took := make([][]time.Duration, len(clients))
	for range n {
		for i, c := range clients {
			began := time.Now()
			Release(b, Lock(b, c, "popular"))
			took[i] = append(took[i], time.Since(began))
		}
	}
	for _, all := range took {
		slices.Sort(all)
		medians = append(medians, all[len(all)/2])
	}
	return medians
}
