package hasp

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Turns are never lost, whenever a waiter gives up: also at the very moment it is called.
func TestLocalQueueUnderCancellation(t *testing.T) {
	var g localQueues
	var wg sync.WaitGroup
	inside := map[string]*int{"a": new(int), "b": new(int)} // guarded by the local queues only
	var passed atomic.Int64
	for i := range 200 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			name := []string{"a", "b"}[i%2]
			r := &request{name: name, units: driver.Whole, capacity: driver.Whole}
			for range 50 {
				ctx, cancel := context.WithTimeout(context.Background(), rand.N(50*time.Microsecond))
				if err := g.enter(ctx, r); err == nil {
					passed.Add(1)
					if *inside[name]++; *inside[name] != 1 {
						t.Errorf("%d inside", *inside[name])
					}
					*inside[name]--
					g.leave(r, i%3 > 0)
				}
				cancel()
			}
		}()
	}
	wg.Wait()
	if passed.Load() == 0 {
		t.Error("no caller passed")
	}
	if len(g.names) != 0 {
		t.Errorf("somebody is still inside, or waits: %v", g.names)
	}
}

// The callers that can hold beside the granted one enter with it, up to the first that cannot; if
// nothing was granted, only the next one enters.
func TestLocalQueueLetsCompatibleTogether(t *testing.T) {
	const capacity = 5
	for _, c := range []struct {
		granted  bool
		first    int64
		behind   []int64
		together int
	}{
		{true, 1, []int64{1, 1, 1}, 3},
		{false, 1, []int64{1, 1, 1}, 1},
		{true, 2, []int64{1, 2, 1, 1}, 2},
		{true, 2, []int64{5, 1}, 1}, // the next, as ever
		{true, 5, []int64{1, 1}, 1},
		{true, 1, nil, 0},
	} {
		var g localQueues
		first := &request{name: "a", units: c.first, capacity: capacity}
		if err := g.enter(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for _, units := range c.behind {
			waiting := len(g.waiting("a"))
			all.Go(func() {
				_ = g.enter(ctx, &request{name: "a", units: units, capacity: capacity})
			})
			for len(g.waiting("a")) == waiting {
				runtime.Gosched()
			}
		}
		g.leave(first, c.granted)
		if got := len(c.behind) - len(g.waiting("a")); got != c.together {
			t.Errorf("%+v: %d entered together", c, got)
		}
		cancel()
		all.Wait()
	}
}

func (g *localQueues) waiting(name string) []localWaiter {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.names[name].waiters
}
