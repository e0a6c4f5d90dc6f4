package retry_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/fencing/retry"
)

var errInTheWay = errors.New("in the way")

func TestGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var waits []time.Duration
		last := time.Now()
		err := retry.Do(t.Context(), retry.Tries, func() (bool, error) {
			waits = append(waits, time.Since(last))
			last = time.Now()
			return true, errInTheWay
		})
		if !errors.Is(err, fencing.ErrConflict) || !errors.Is(err, errInTheWay) {
			t.Errorf("at the end: %v", err)
		}
		if len(waits) != retry.Tries {
			t.Fatalf("%d tries, want %d", len(waits), retry.Tries)
		}
		bound := 2 * time.Millisecond
		for i, w := range waits[1:] {
			if w < bound/2 || w > bound {
				t.Errorf("wait %d is %s, want %s to %s", i, w, bound/2, bound)
			}
			bound = min(2*bound, 128*time.Millisecond)
		}
	})
}

func TestStopsAtAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		if err := retry.Do(t.Context(), 5, func() (bool, error) { n++; return n < 3, nil }); err != nil || n != 3 {
			t.Errorf("a success at try 3: %d tries, %v", n, err)
		}
		final := errors.New("final")
		n = 0
		if err := retry.Do(t.Context(), 5, func() (bool, error) { n++; return false, final }); err != final || n != 1 {
			t.Errorf("a final error: %d tries, %v", n, err)
		}
	})
}

// A context that ends during a wait ends it at once, and is not masked.
func TestContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		start := time.Now()
		err := retry.Do(ctx, 1000, func() (bool, error) { return true, errInTheWay })
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errInTheWay) || errors.Is(err, fencing.ErrConflict) {
			t.Errorf("after the deadline: %v", err)
		}
		if d := time.Since(start); d != 5*time.Millisecond {
			t.Errorf("returned after %s", d)
		}
		interrupted := errors.New("interrupted") // as SQLite has it
		err = retry.Do(ctx, 1, func() (bool, error) { return false, interrupted })
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, interrupted) {
			t.Errorf("a library's own words: %v", err)
		}
		if err := retry.Do(ctx, 1, func() (bool, error) { return false, nil }); err != nil {
			t.Errorf("done in spite of it: %v", err)
		}
	})
}
