package hasp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/bootclock"
)

// limits are a holder's own bounds, as the options of a lock set them; 0 where unset.
type limits struct {
	min, max, stall time.Duration
}

// MinHold keeps the lock for at least d after it was granted: [Lease.Release] ends the
// lease at once, but waits until then before it gives the lock to the next. It is for
// jobs that several machines start at the same moment: with a fast job and clocks a
// second apart, the last machine would otherwise run it again. If the context of Release
// ends first, the rest is done in the background, as long as the client is not closed.
//
// It is this process that keeps the lock: with the client's Close or the end of the process the
// store frees it, at once or after the TTL, however much of d is left. A job that must not run
// twice after a crash either records what it has done.
func MinHold(d time.Duration) LockOption {
	return func(c *lockConfig) { c.limit("MinHold", &c.limits.min, d) }
}

// MaxHold ends a lease that is held for longer than d, with [ReasonOverdue]: the
// work's context is cancelled, and after the safety margin (see [WithSafetyMargin]) the lock is
// given to the next.
func MaxHold(d time.Duration) LockOption {
	return func(c *lockConfig) { c.limit("MaxHold", &c.limits.max, d) }
}

// StallAfter ends a lease whose holder has not called [Lease.Progress] for longer than d,
// with [ReasonStalled], as MaxHold does. Renewal tells the store that a process lives;
// this tells hasp that its work gets on: a deadlocked or hung holder does not block the
// others for ever.
func StallAfter(d time.Duration) LockOption {
	return func(c *lockConfig) { c.limit("StallAfter", &c.limits.stall, d) }
}

func (c *lockConfig) limit(option string, into *time.Duration, d time.Duration) {
	if d <= 0 {
		c.err = errors.Join(c.err, fmt.Errorf("%w: %s must be greater than zero, not %s", ErrInvalid, option, d))
	}
	*into = d
}

func (l *limits) check() error {
	if l.max > 0 && l.min > l.max {
		return fmt.Errorf("%w: MinHold (%s) is longer than MaxHold (%s)", ErrInvalid, l.min, l.max)
	}
	return nil
}

// Progress says that the work under a lock with [StallAfter] gets on. Call it as often as
// you like: it sends nothing. Without StallAfter, or after the lease has ended, it does
// nothing.
func (l *Lease) Progress() {
	e := l.entry
	if e.limit == nil || !e.trusted() { // what is over stays over
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if l.err == nil {
		e.limit.progress = bootclock.Now()
	}
}

// limit is the limits of an entry at work. entry.mu protects all fields but the limits themselves.
type limit struct {
	limits
	since    bootclock.Instant // when the lease of the moment was granted
	progress bootclock.Instant
	timer    *time.Timer
}

// newLimit returns nil if nothing is to be watched. MinHold alone needs the moment of the
// grant only.
func newLimit(l limits) *limit {
	if l == (limits{}) {
		return nil
	}
	return &limit{limits: l}
}

// leftLocked is how long the holder has left by its own limits, and the reason if nothing.
func (e *entry) leftLocked() (left time.Duration, reason Reason) {
	left = driver.Forever
	if e.limit.max > 0 {
		elapsed, _ := bootclock.Since(e.limit.since)
		left, reason = e.limit.max-elapsed, ReasonOverdue
	}
	if e.limit.stall > 0 {
		elapsed, _ := bootclock.Since(e.limit.progress)
		if stall := e.limit.stall - elapsed; stall < left {
			left, reason = stall, ReasonStalled
		}
	}
	return left, reason
}

// limitLeft is leftLocked for those who only show it; false if there is no limit.
func (e *entry) limitLeft() (time.Duration, bool) {
	if e.limit == nil {
		return 0, false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	left, reason := e.leftLocked()
	return left, reason != ""
}

func (e *entry) withinLimit() bool {
	if e.limit == nil {
		return true
	}
	e.mu.Lock()
	if e.state != held {
		e.mu.Unlock()
		return true // nothing is held that a limit could end
	}
	left, reason := e.leftLocked()
	e.mu.Unlock()
	if left > 0 {
		return true
	}
	e.endOverLimit(reason)
	return false
}

// endOverLimit takes the lock from a holder that is still alive, and may be in the middle of a
// write. So it is told first, and has the safety margin to stop: the same as it would have
// at a loss by expiry, before the store hands the lock on.
func (e *entry) endOverLimit(reason Reason) {
	s := e.session
	if e.lose(reason, nil, s.confirmed()) != held {
		return // somebody else was first
	}
	e.mu.Lock()
	values := e.first.parent
	e.mu.Unlock()
	s.client.inBackground(func() {
		defer s.remove(e)
		if sleep(s.done, s.client.cfg.marginOf(s.client.cfg.ttl)) {
			s.client.clean(values, s.done, e.ticket.Leave)
		}
	})
}

// startLimitLocked begins to count for the holder, at the grant.
func (e *entry) startLimitLocked(granted bootclock.Instant) {
	if e.limit == nil {
		return
	}
	e.limit.since, e.limit.progress = granted, granted
	if left, reason := e.leftLocked(); reason != "" {
		e.stopLimitLocked()
		e.limit.timer = time.AfterFunc(min(left, trustCheck), e.checkLimit)
	}
}

func (e *entry) stopLimitLocked() {
	if e.limit != nil && e.limit.timer != nil {
		e.limit.timer.Stop()
	}
}

// checkLimit is the timer. Like the trust timer it is not moved by progress: it looks,
// and sleeps for what is left, never long, since timers stand still in a suspended machine.
func (e *entry) checkLimit() {
	if !e.withinLimit() {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state == held {
		left, _ := e.leftLocked()
		e.limit.timer.Reset(min(max(left, 0), trustCheck))
	}
}

// minLeftLocked is for how long MinHold keeps the lock from the next. The caller has e.mu, or is
// the release that has ended the last lease: the limit does not change any more.
func (e *entry) minLeftLocked() time.Duration {
	elapsed, _ := bootclock.Since(e.limit.since)
	return e.limit.min - elapsed
}

// awaitMinHold waits until MinHold is over. What ctx does not wait for happens in the background.
func (e *entry) awaitMinHold(ctx context.Context) error {
	if e.limit == nil || e.limit.min == 0 {
		return nil
	}
	if sleep(ctx, e.minLeftLocked()) {
		return nil
	}
	s := e.session
	s.client.inBackground(func() {
		if sleep(s.done, e.minLeftLocked()) {
			s.client.clean(ctx, s.done, e.ticket.Leave)
		}
	})
	return fmt.Errorf("%w: the lock stays held until MinHold (%s) is over: %w", ErrUnknown, e.limit.min, contextError(ctx))
}
