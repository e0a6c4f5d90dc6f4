package hasp

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Turns are never lost, whenever a waiter gives up: also at the very moment it is called.
func TestGateUnderCancellation(t *testing.T) {
	var g gates
	var wg sync.WaitGroup
	inside := map[string]*int{"a": new(int), "b": new(int)} // guarded by the gates only
	var passed atomic.Int64
	for i := range 200 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			name := []string{"a", "b"}[i%2]
			for range 50 {
				ctx, cancel := context.WithTimeout(context.Background(), rand.N(50*time.Microsecond))
				if err := g.enter(ctx, name); err == nil {
					passed.Add(1)
					if *inside[name]++; *inside[name] != 1 {
						t.Errorf("%d inside", *inside[name])
					}
					*inside[name]--
					g.leave(name)
				}
				cancel()
			}
		}()
	}
	wg.Wait()
	if passed.Load() == 0 {
		t.Error("nobody passed")
	}
	if len(g.names) != 0 {
		t.Errorf("somebody is still inside, or waits: %v", g.names)
	}
}
