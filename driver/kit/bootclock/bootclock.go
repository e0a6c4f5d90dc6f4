// Package bootclock measures how much time has passed, sleep of the machine included. A driver
// counts with it how long an entry is still safe, since an entry runs out in its store while the
// machine of its holder sleeps, and an administrator who sets a clock must not prolong a lock.
//
//	sent := bootclock.Now()
//	err := renew(ctx) // the request to the store
//	left := ttl - bootclock.Now().Sub(sent)
//
// It reads the two clocks that never jump: the monotonic one, and on Linux the boot clock, which
// runs on while the machine sleeps.
package bootclock

import "time"

// Instant is a point in time on both. A lease must run out while the machine sleeps, and Go's
// monotonic reading (CLOCK_MONOTONIC on Linux) stands still then; CLOCK_BOOTTIME does not. It is
// not used alone, because timers and fake time (testing/synctest) follow the monotonic one: the
// greater of both is safe in either case.
type Instant struct {
	At   time.Time     // wall and monotonic
	Boot time.Duration // since boot, suspend included; 0 where the system has no such clock
}

// Now reads both clocks. The boot clock costs a system call, about 300 ns.
func Now() Instant { return Instant{At: time.Now(), Boot: Boot()} }

// Before reports whether t is earlier than u by the monotonic clock.
func (t Instant) Before(u Instant) bool { return t.At.Before(u.At) }

// Compare orders instants by the monotonic clock.
func (t Instant) Compare(u Instant) int { return t.At.Compare(u.At) }

// IsZero reports whether t is no instant.
func (t Instant) IsZero() bool { return t.At.IsZero() }

// Sub is the time from u to t, never less than the real one. The wall clock, which an administrator
// or a time server sets, has no part in it.
func (t Instant) Sub(u Instant) time.Duration {
	mono := t.At.Sub(u.At)
	if t.Boot == 0 || u.Boot == 0 {
		return mono
	}
	return max(mono, t.Boot-u.Boot)
}

// wallSlack is how far wall and monotonic time may differ over an interval without any
// suspicion of sleep; far less than any margin.
const wallSlack = 5 * time.Millisecond

// Since returns the time from t to now, never less than the real one, and how much of it
// the machine spent suspended.
//
// The boot clock costs a system call for each question whether a lease is held.
// It is read only when there is reason: at a resume the kernel moves the wall clock and
// the boot clock forward by the same amount, so that a sleep shows as a difference between
// wall and monotonic time, and Go reads these two without a system call. What this
// misses is a wall clock that somebody sets back, to within wallSlack, by just the time
// slept. A wall clock that jumps without a sleep costs the system call, and nothing else:
// it is never believed.
//
// The roads not taken are the boot clock alone, since timers and fake time follow the monotonic
// one, and the wall clock, which an administrator sets.
func Since(t Instant) (elapsed, suspended time.Duration) {
	n := time.Now()
	mono, wall := n.Sub(t.At), n.Round(0).Sub(t.At.Round(0))
	return compare(mono, wall, func() time.Duration { return Boot() - t.Boot })
}

func compare(mono, wall time.Duration, boot func() time.Duration) (elapsed, suspended time.Duration) {
	if diff := wall - mono; -wallSlack < diff && diff < wallSlack {
		return mono, 0
	}
	if boot := boot(); boot > mono {
		return boot, boot - mono
	}
	return mono, 0
}
