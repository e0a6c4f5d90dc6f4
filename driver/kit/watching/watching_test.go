package watching_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp/driver/kit/watching"
)

// One run serves all names, and ends when nothing is watched; the next watch begins another. Its
// error is told to all, and not to those that come later.
func TestGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g watching.Group
		var runs, under atomic.Int32
		fails := make(chan error, 1)
		g.Run = func(ctx context.Context) error {
			runs.Add(1)
			under.Add(1)
			defer under.Add(-1)
			for {
				_, due := g.Names()
				for _, name := range due {
					g.Asked(name, time.Minute)
					g.Changed(name)
				}
				asleep, cancel := g.Pause(ctx)
				select {
				case err := <-fails:
					cancel()
					return err
				case <-asleep.Done():
				}
				cancel()
				if ctx.Err() != nil {
					return ctx.Err()
				}
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 10)
		var calls [3]atomic.Int32
		watch := func(ctx context.Context, i int, name string) {
			go func() { ended <- g.Watch(ctx, name, func() { calls[i].Add(1) }) }()
			synctest.Wait()
		}
		want := func(what string, a, b, c int32) {
			t.Helper()
			if got := [3]int32{calls[0].Load(), calls[1].Load(), calls[2].Load()}; got != [3]int32{a, b, c} {
				t.Errorf("%s: called %d times, want %d %d %d", what, got, a, b, c)
			}
		}
		watch(ctx, 0, "a")
		want("a stands", 1, 0, 0)
		watch(ctx, 1, "b")
		want("b stands", 1, 1, 0)
		watch(ctx, 2, "a")
		want("another of a, which stands", 1, 1, 1)
		g.Changed("a")
		want("a has changed", 2, 1, 2)
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		want("asked again when due", 3, 2, 3)
		stop()
		for range 3 {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("the end of a watch: %v", err)
			}
		}
		synctest.Wait()
		if runs.Load() != 1 || under.Load() != 0 {
			t.Errorf("%d runs, %d under way", runs.Load(), under.Load())
		}
		watch(t.Context(), 0, "a")
		watch(t.Context(), 1, "b")
		why := errors.New("why")
		fails <- why
		for range 2 {
			if err := <-ended; err != why {
				t.Errorf("told: %v", err)
			}
		}
		again, stop := context.WithCancel(t.Context())
		watch(again, 2, "c")
		if want("another", 4, 3, 4); runs.Load() != 3 {
			t.Errorf("%d runs", runs.Load())
		}
		stop()
		<-ended
	})
}
