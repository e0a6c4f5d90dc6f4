package hasp_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/hasptest"
	"github.com/hasplock/hasp/memlock"
)

// What the core itself costs: lock and unlock in memory. Target: 2 us, 10 allocations.
func BenchmarkCore(b *testing.B) {
	c := open()
	defer c.Close()
	ctx := context.Background()
	b.ReportAllocs()
	m := c.Mutex("a")
	for b.Loop() {
		l, err := m.Lock(ctx)
		if err == nil {
			err = l.Release(ctx)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// Many locks at once: the time for each is to stay the same. Target: 50 ms for 1,000.
func BenchmarkLockAll(b *testing.B) {
	for _, n := range []int{10, 1000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := open()
			defer c.Close()
			locks := make([]hasp.Locker, n)
			for i := range locks {
				locks[i] = c.Mutex(fmt.Sprintf("name-%d", i))
			}
			for b.Loop() {
				m, err := hasp.LockAll(b.Context(), locks...)
				if err == nil {
					err = m.Release(b.Context())
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/lock")
		})
	}
}

// 64 goroutines of one client on one name: the local queue and the hand-over in memory.
func BenchmarkCoreOneName64(b *testing.B) {
	c := open()
	defer c.Close()
	crowd64(b, under(c.Mutex("a")))
}

func under(m *hasp.Mutex) func(context.Context, func(context.Context) error) error {
	return func(ctx context.Context, fn func(context.Context) error) error { return hasp.Do(ctx, m, fn) }
}

// crowd64 has 64 goroutines do nothing under a lock.
func crowd64(b *testing.B, do func(context.Context, func(context.Context) error) error) {
	nothing := func(context.Context) error { return nil }
	b.SetParallelism(32) // times GOMAXPROCS
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := do(context.Background(), nothing); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// The same on a store whose every request takes 200 us, as one over a network does: without and
// with the recipe for it.
func BenchmarkOneName64(b *testing.B) {
	for _, kept := range []bool{false, true} {
		b.Run(fmt.Sprintf("kept=%t", kept), func(b *testing.B) {
			store := hasptest.New()
			store.Delay(200 * time.Microsecond)
			c, err := hasp.New(store.Backend())
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			m := c.Mutex("a")
			do := under(m)
			if kept {
				do = newCrowd(m, 32, 50*time.Millisecond).Do
			}
			crowd64(b, do)
		})
	}
}

// Heap per held lock, and what Held costs while many are held. Target: 1 KB, no goroutine.
func BenchmarkHeld10000(b *testing.B) {
	c, err := hasp.New(memlock.New().Backend())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	leases := make([]*hasp.Lease, 10_000)
	before := heap()
	for i := range leases {
		if leases[i], err = c.Mutex(fmt.Sprintf("lock-%d", i)).Lock(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
	perLock := float64(heap()-before) / float64(len(leases))
	i := 0
	for b.Loop() {
		if !leases[i%len(leases)].Held() {
			b.Fatal(leases[i%len(leases)].Err())
		}
		i++
	}
	b.ReportMetric(perLock, "heapB/lock")
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
