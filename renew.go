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
		default:
			if errors.As(err, new(*driver.PartialRenewal)) && errors.Is(err, context.DeadlineExceeded) {
				failures = backoff{} // the store is slow, and gets on: its time goes into the next entries
			}
			wait = failures.next()
			s.client.event(Event{Kind: EventRenewFailed, Remaining: margin, Took: took, Err: err})
		}
	}
}

func (s *session) untilRenewal() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	elapsed, _ := since(s.sent)
	return s.granted/3 - elapsed
}

// keepAlive makes one attempt and returns the trust that was left when it ended. It may
// take half of what is left, so that an answer that never comes still leaves time for
// further attempts on a fresh connection.
func (s *session) keepAlive() (margin time.Duration, err error) {
	s.mu.Lock()
	left := s.remainingLocked()
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.done, max(left/2, minMargin/2))
	defer cancel()

	sent := now() // before the call: a slow answer must not lengthen the lease
	granted, err := s.drv.KeepAlive(ctx)

	if !s.trusted() { // the answer came too late to count
		return 0, fmt.Errorf("renewal answered after the deadline: %w", context.DeadlineExceeded)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	margin = s.remainingLocked()
	if partial := new(driver.PartialRenewal); errors.As(err, &partial) {
		s.sent, s.granted = sent, partial.Granted
		s.late = s.lateLocked(sent, partial.Late)
		s.timer.Reset(0) // it may be asleep for longer than those have left
	}
	s.lastErr = err
	if err == nil {
		s.sent, s.granted, s.late = sent, granted, nil
	}
	return margin, err
}
