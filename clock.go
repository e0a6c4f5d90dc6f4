package hasp

import (
	"context"
	"math/rand/v2"
	"time"
)

// instant is a point in time on the two clocks that never jump. A lease must run out
// while the machine sleeps, and Go's monotonic reading (CLOCK_MONOTONIC on Linux) stands
// still then; CLOCK_BOOTTIME does not. It is not used alone, because timers and
// fake time (testing/synctest) follow the monotonic one: the greater of both is safe in either
// case.
type instant struct {
	at   time.Time     // wall and monotonic
	boot time.Duration // since boot, suspend included; 0 where the system has no such clock
}

func now() instant { return instant{at: time.Now(), boot: bootTime()} }

// wallSlack is how far wall and monotonic time may differ over an interval without any
// suspicion of sleep; far less than any margin.
const wallSlack = 5 * time.Millisecond

// since returns the time from t to now, never less than the real one, and how much of it
// the machine spent suspended.
//
// The boot clock costs a system call, about 300 ns, for each question whether a lease is held.
// It is read only when there is reason: at a resume the kernel moves the wall clock and
// the boot clock forward by the same amount, so that a sleep shows as a difference between
// wall and monotonic time, and Go reads these two without a system call. What this
// misses is a wall clock that somebody sets back, to within wallSlack, by just the time
// slept. A wall clock that jumps without a sleep costs the system call, and nothing else:
// it is never believed.
//
// The roads not taken are the boot clock alone, since timers and fake time follow the monotonic
// one, and the wall clock, which an administrator sets.
func since(t instant) (elapsed, suspended time.Duration) {
	n := time.Now()
	mono, wall := n.Sub(t.at), n.Round(0).Sub(t.at.Round(0))
	return compareClocks(mono, wall, func() time.Duration { return bootTime() - t.boot })
}

func compareClocks(mono, wall time.Duration, boot func() time.Duration) (elapsed, suspended time.Duration) {
	if diff := wall - mono; -wallSlack < diff && diff < wallSlack {
		return mono, 0
	}
	if boot := boot(); boot > mono {
		return boot, boot - mono
	}
	return mono, 0
}

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
