package hasp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hasplock/hasp/driver"
)

// renew keeps the session alive: every third of the granted TTL, counted from the last
// success; after a failure sooner, until trust has run out or the store has said that
// the session is gone.
func (s *session) renew() {
	var failures backoff
	wait := s.untilRenewal()
	for sleep(s.done, wait) {
		began := time.Now()
		margin, err := s.keepAlive()
		took := time.Since(began)
		switch {
		case s.endedUnasked():
			return // closed, or gone: that was told, and what the renewal says is no news
		case err == nil:
			failures = backoff{}
			wait = s.untilRenewal()
			s.client.event(Event{Kind: EventRenewed, Remaining: margin, Took: took})
		case errors.Is(err, driver.ErrGone):
			s.end(ReasonSessionGone, err)
		case slow(err): // it gets on, oldest first: all of its time goes into the next entries
			failures, wait = backoff{}, 0
			if margin > s.margin {
				s.client.event(Event{Kind: EventRenewed, Remaining: margin, Took: took})
				break
			}
			fallthrough
		default:
			if !slow(err) {
				wait = failures.next()
			}
			s.client.event(Event{Kind: EventRenewed, Remaining: margin, Took: took, Err: err})
		}
	}
}

func (s *session) untilRenewal() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	elapsed, _ := since(s.sent)
	return s.granted/3 - elapsed
}

// slow reports that a renewal has renewed some entries and had no time for the others.
func slow(err error) bool {
	var partial *driver.PartialRenewal
	return errors.As(err, &partial) && partial.Slow
}

// attemptLocked is how long a renewal may take: half of what the oldest entry has left, so that an
// answer that never comes still leaves time for further attempts on a fresh connection. After one
// that got on but was not ready it is three quarters: halves of halves would be too short for the
// round trip of a slice. Not all of it: what the driver renews counts here when KeepAlive returns,
// and the oldest entry's time must not be over by then.
func (s *session) attemptLocked() time.Duration {
	left := min(s.remainingLocked(), s.late.soonest(s.margin))
	part := left / 2
	if slow(s.lastErr) {
		part = left - left/4
	}
	return max(part, minMargin/2)
}

// keepAlive makes one attempt and returns the trust that was left when it ended, in the oldest
// entry. Those that a slow store had no time for are late, and end one by one: the session goes on
// with those that were renewed.
func (s *session) keepAlive() (margin time.Duration, err error) {
	s.mu.Lock()
	attempt := s.attemptLocked()
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.done, attempt)
	defer cancel()

	sent := now() // before the call: a slow answer must not lengthen the lease
	granted, err := s.drv.KeepAlive(ctx)

	if !s.trusted() { // the answer came too late to count
		return 0, fmt.Errorf("renewal answered after the deadline: %w", context.DeadlineExceeded)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if partial := new(driver.PartialRenewal); errors.As(err, &partial) {
		s.sent, s.granted = sent, partial.Granted
		s.late = s.lateLocked(sent, partial.Late)
		s.timer.Reset(0) // it may be asleep for longer than those have left
	}
	s.lastErr = err
	margin = min(s.remainingLocked(), s.late.soonest(s.margin))
	if err == nil {
		s.sent, s.granted, s.late = sent, granted, nil
	}
	return margin, err
}
