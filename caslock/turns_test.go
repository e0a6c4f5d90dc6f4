package caslock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Four clients that lock one name again as soon as they have released it have it about as often, where
// they are told of its releases.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSimulation(10 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		grants := make([]int, 4)
		var all sync.WaitGroup
		for i := range grants {
			h := s.host(fmt.Sprint(i), true, faulty{})
			h.setFate(func(string, string) fate { return fate{out: 2 * time.Millisecond, back: 2 * time.Millisecond} })
			c, _ := h.client(t)
			all.Go(func() {
				defer c.Close()
				for {
					l, err := h.lock(ctx, c, "n")
					if err != nil {
						return
					}
					grants[i]++
					time.Sleep(10 * time.Millisecond)
					l.Release(t.Context())
				}
			})
		}
		all.Wait()
		t.Log(grants)
		if least, most := slices.Min(grants), slices.Max(grants); least*8 < most || most < 100 {
			t.Errorf("grants: %v", grants)
		}
	})
}
