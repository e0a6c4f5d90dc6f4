package pushqueue

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// late is a context whose timer has not fired yet.
type late struct{ context.Context }

func (late) Err() error { return nil }

func TestEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for _, c := range []struct {
			wait time.Duration
			want error
		}{{time.Second - 1, nil}, {1, context.DeadlineExceeded}, {1, context.DeadlineExceeded}} {
			time.Sleep(c.wait)
			if err := Ended(late{ctx}); err != c.want {
				t.Errorf("%v, want %v", err, c.want)
			}
		}
		cancelled, cancel := context.WithCancel(t.Context())
		if err := Ended(cancelled); err != nil {
			t.Error(err)
		}
		cancel()
		if err := Ended(cancelled); err != context.Canceled {
			t.Error(err)
		}
	})
}
