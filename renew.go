package hasp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/bootclock"
)

// renew keeps the session alive: every third of the granted TTL, counted from the last
// success; after a failure sooner, until trust has run out or the store has said that
// the session is gone.
func (s *session) renew() {
	var failures backoff
	wait := s.untilRenewal()
	for sleep(s.done, wait) {
		began := time.Now()
		left, err := s.keepAlive()
		took := time.Since(began)
		switch {
		case s.endedUnasked():
			return // closed, or gone: that was told, and what the renewal says is no news
		case err == nil:
			failures = backoff{}
			wait = s.untilRenewal()
			s.client.event(Event{Kind: EventRenewed, Remaining: left, Took: took})
		case errors.Is(err, driver.ErrGone):
			s.end(ReasonSessionGone, err)
		case onlyUnanswered(err): // no failure: the held ones are renewed
			failures = backoff{}
			wait = min(s.untilRenewal(), s.soonestUnanswered()/2)
			s.client.event(Event{Kind: EventRenewed, Remaining: left, Took: took})
		case slow(err): // it gets on, oldest first: all of its time goes into the next entries
			failures, wait = backoff{}, 0
			if left > s.margin {
				s.client.event(Event{Kind: EventRenewed, Remaining: left, Took: took})
				break
			}
			fallthrough
		default:
			if !slow(err) {
				wait = failures.next()
			}
			if partly(err) { // those that were renewed are due as always
				wait = min(wait, max(s.untilRenewal(), 0))
			}
			s.client.event(Event{Kind: EventRenewed, Remaining: left, Took: took, Err: err})
		}
	}
}

func (s *session) untilRenewal() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	elapsed, _ := bootclock.Since(s.sent)
	return s.granted/3 - elapsed
}

// slow reports that a renewal has renewed some entries and had no time for the others.
func slow(err error) bool {
	var partial *driver.PartialRenewal
	return errors.As(err, &partial) && partial.Slow
}

// partly reports that a renewal has renewed some entries.
func partly(err error) bool { return errors.As(err, new(*driver.PartialRenewal)) }

// onlyUnanswered reports that a renewal has reached all entries but those whose Enqueue is under
// way.
func onlyUnanswered(err error) bool {
	var partial *driver.PartialRenewal
	return errors.As(err, &partial) && len(partial.Unanswered) > 0 && len(partial.Unanswered) == len(partial.Late)
}

// soonestUnanswered is for how long the first of those is still trusted, 40 ms at least.
func (s *session) soonestUnanswered() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(s.late.first(s.margin, true), 2*backoffFirst)
}

// attemptLocked is how long a renewal may take: half of what the oldest entry has left, so that an
// answer that never comes still leaves time for further attempts on a fresh connection. After one
// that got on but was not ready it is three quarters: halves of halves would be too short for the
// round trip of a slice. Not all of it: what the driver renews counts here when KeepAlive returns,
// and the oldest entry's time must not be over by then. An entry whose Enqueue is not answered
// shortens no attempt: the driver does not wait for it.
func (s *session) attemptLocked() time.Duration {
	left := min(s.remainingLocked(), s.late.first(s.margin, false))
	part := left / 2
	if slow(s.lastErr) {
		part = left - left/4
	}
	return max(part, minMargin/2)
}

// keepAlive makes one attempt and returns the trust that was left when it ended, in the oldest
// entry. Those that a slow store had no time for are late, and end one by one: the session goes on
// with those that were renewed.
func (s *session) keepAlive() (left time.Duration, err error) {
	s.mu.Lock()
	attempt := s.attemptLocked()
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.done, attempt)
	defer cancel()

	sent := bootclock.Now() // before the call: a slow answer must not lengthen the lease
	granted, err := s.drv.KeepAlive(ctx)

	if !s.trusted() { // the answer came too late to count
		return 0, fmt.Errorf("renewal answered after the deadline: %w", context.DeadlineExceeded)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if partial := new(driver.PartialRenewal); errors.As(err, &partial) {
		s.sent, s.granted = sent, partial.Granted
		s.late = s.lateLocked(sent, partial)
		s.timer.Reset(0) // it may be asleep for longer than those have left
	}
	if s.lastErr = err; onlyUnanswered(err) {
		s.lastErr = nil
	}
	left = min(s.remainingLocked(), s.late.soonest(s.margin))
	if err == nil {
		s.sent, s.granted, s.late = sent, granted, nil
	}
	return left, err
}
