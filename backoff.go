package hasp

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	backoffFirst = 20 * time.Millisecond
	backoffMost  = 2 * time.Second
)

// backoff spaces attempts after failures: doubling from 20 ms to 2 s, each with a random
// half taken off, so that the clients of a store that comes back do not arrive together.
// The zero value means "no failure yet". It is for one goroutine at a time.
type backoff struct {
	delay time.Duration
	until time.Time
}

// next is how long to wait after another failure.
func (b *backoff) next() time.Duration {
	b.delay = min(max(2*b.delay, backoffFirst), backoffMost)
	return b.delay/2 + rand.N(b.delay/2)
}

// sleep waits after a failure; false says that ctx ended.
func (b *backoff) sleep(ctx context.Context) bool {
	return sleep(ctx, b.next())
}

// failed notes a failure, pause waits until the next attempt is due. They stand apart
// where the one who failed and the one who tries next are different callers.
func (b *backoff) failed() { b.until = time.Now().Add(b.next()) }

func (b *backoff) pause(ctx context.Context) bool {
	return sleep(ctx, time.Until(b.until))
}

func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
