package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"
)

// held is how many locks S5 holds.
const held = 10_000

// holding has one client hold many locks, and looks at what that costs while nothing
// happens. It is of contestants that renew: a floor would let them expire.
func holding(ctx context.Context, m *match) (fig figures) {
	if m.who.role != ours {
		return fig
	}
	n, span := held, m.lasts(12*time.Second)
	c, err := m.who.open(ctx)
	if err != nil {
		return figures{Error: err.Error()}
	}
	defer c.close()
	// As many as will take locks at once: a pool of connections is full then.
	if err := inParallel(64, func(i int) error { return c.cycle(ctx, m.name("s5-warm", i)) }); err != nil {
		return figures{Error: err.Error()}
	}
	heap, goroutines := inUse(), runtime.NumGoroutine()
	unlocks := make([]func() error, n)
	if err := inParallel(n, func(i int) (err error) {
		unlocks[i], err = c.lock(ctx, m.name("s5", i))
		return err
	}); err != nil {
		return figures{Error: err.Error()}
	}
	time.Sleep(2 * time.Second) // what the acquisitions have caused is over
	fig = m.measure(func() (int, error) {
		time.Sleep(span)
		return n, nil
	})
	if fig.Error != "" {
		return fig
	}
	seconds := span.Seconds()
	fig.PerSecond = fig.Commands * float64(n) / seconds
	fig.CPU30 = fig.CPU * float64(n) / 1e6 / seconds * 30
	fig.Commands, fig.CPU, fig.Rate = 0, 0, 0
	fig.Heap = float64(inUse()-heap) / float64(n)
	fig.Goroutines = float64(runtime.NumGoroutine()-goroutines) / float64(n)
	var mu sync.Mutex
	_ = inParallel(n, func(i int) error {
		if err := unlocks[i](); err != nil { // a lock that was lost says so here
			mu.Lock()
			fig.Lost++
			mu.Unlock()
		}
		return nil
	})
	return fig
}

// inParallel calls f for 0 to n-1 from 64 goroutines, and returns the first error.
func inParallel(n int, f func(i int) error) error {
	errs := make(chan error, 64)
	var wg sync.WaitGroup
	for g := range 64 {
		wg.Go(func() {
			for i := g; i < n; i += 64 {
				if err := f(i); err != nil {
					errs <- fmt.Errorf("%d of %d: %w", i, n, err)
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

func inUse() int64 {
	runtime.GC()
	runtime.GC() // what finalizers have let go of
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}
