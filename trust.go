package hasp

import (
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/bootclock"
)

// trustCheck is the longest sleep of a session's one trust timer. Timers stand still while a
// machine is suspended; with this, a loss during the suspension is signalled within a second of
// waking up, and Held reports it at once.
const trustCheck = time.Second

// remainingLocked is how long the session may still be trusted.
func (s *session) remainingLocked() time.Duration {
	if s.granted == driver.Forever {
		return driver.Forever
	}
	elapsed, _ := bootclock.Since(s.sent)
	return s.granted - s.margin - elapsed
}

// trusted reports whether the session may be relied on.
func (s *session) trusted() bool { return s.trusts(nil) }

// trusts reports whether an entry may be relied on, as far as its session knows. It computes
// from the clocks, never from a flag: after a pause its first call must already say no.
// A caller that finds the trust over ends the session (or the entry, if that was late), so that a
// keepalive whose answer arrives later cannot bring it back to life (S6).
func (s *session) trusts(e *entry) bool {
	s.mu.Lock()
	if s.endErr != nil {
		s.mu.Unlock()
		return false
	}
	over := s.remainingLocked() <= 0
	l, isLate := s.late[e]
	lateOver := isLate && l.left(s.margin) <= 0
	s.mu.Unlock()
	switch {
	case over:
		s.expire()
	case lateOver:
		s.expireLate(e)
	}
	return !over && !lateOver
}

// wasHeld reports whether an entry that the store has just removed for us was ours until then.
// Unlike trusts it goes by the clocks alone where the client was closed: that takes nothing
// away from what was held until it was released.
func (s *session) wasHeld(e *entry) bool {
	if s.trusts(e) {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endErr != nil && s.endErr.reason == ReasonClosed && s.remainingLocked() > 0
}

// closedByUs reports that the session has ended because the client was closed.
func (s *session) closedByUs() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endErr != nil && s.endErr.reason == ReasonClosed
}

// endedUnasked reports that the session has ended, and not because it was not renewed in time.
func (s *session) endedUnasked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endErr != nil && s.endErr.reason != ReasonExpired && s.endErr.reason != ReasonClockJump
}

// checkTrust is the trust timer. It runs on its own goroutine, so a renewal that hangs
// cannot delay it. Successful renewals do not reset it: it looks, and sleeps for what is left.
func (s *session) checkTrust() {
	if !s.trusted() {
		return
	}
	s.checkLeaving()
	s.checkLate()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endErr == nil {
		s.timer.Reset(min(s.remainingLocked(), s.late.soonest(s.margin), trustCheck))
	}
}

func (s *session) expire() {
	s.mu.Lock()
	_, suspended := bootclock.Since(s.sent)
	reason := ReasonExpired
	if suspended > s.granted/2 {
		reason = ReasonClockJump // without the sleep, the lease would have lasted
	}
	err := s.lastErr
	s.mu.Unlock()
	s.end(reason, err)
}

// untilOverLocked is for how long the store must not be asked to remove the entries: until the
// session's time there is over. When trust ends at D, the store keeps them for the safety margin
// longer, which a holder's last write has to arrive (S4). If the store is reachable by then, and
// the session ended at once, the next client would hold meanwhile. A client that is closed, or a
// store that has removed them itself, leaves nothing to protect. Price: a waiter waits for that
// rest.
func (s *session) untilOverLocked(reason Reason) time.Duration {
	if s.granted == driver.Forever || reason != ReasonExpired && reason != ReasonClockJump {
		return 0
	}
	return s.remainingLocked() + s.margin
}

// deadline is when trust in an entry ends if nothing is renewed from now on; zero if never.
func (s *session) deadline(e *entry) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.granted == driver.Forever {
		return time.Time{}
	}
	left := s.remainingLocked()
	if l, isLate := s.late[e]; isLate {
		left = min(left, l.left(s.margin))
	}
	return time.Now().Add(left)
}

// confirmed is when the store last confirmed the session's entries.
func (s *session) confirmed() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent.At
}
