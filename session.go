package hasp

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/bootclock"
)

// session is the client's side of a driver.Session: which entries live in it, and until when it may
// be trusted (trust.go).
//
// One deadline serves all leases of a session: the driver promises that no entry is removed for the
// granted time, counted from before the last successful keepalive, also not one entered since. So
// there is no timer, no goroutine and no renewal per lock, and 10,000 held locks cost what one
// costs. Only entries that a renewal did not reach while it reached others have their own deadline
// (late.go). Rejected: a deadline per lease. It is later by at most a third of the TTL for locks
// just taken, at the price of a timer each and of two kinds of truth.
type session struct {
	client *Client
	drv    driver.Session

	done context.Context // ended with the session; the cause is its *endedError
	stop context.CancelCauseFunc

	mu      sync.Mutex
	endErr  *endedError       // nil while it lives
	sent    bootclock.Instant // just before the last good keepalive (or Open) was sent
	granted time.Duration     // by that call
	margin  time.Duration     // of that, how much at the end is not trusted: the safety margin, and for clock rates
	late    lateEntries       // nil nearly always
	timer   *time.Timer       // the trust timer
	lastErr error             // of the last failed renewal since then
	entries map[string]*entry

	leaving atomic.Int64 // releases under way
}

// endedError tells a waiter that its place in the queue went with the session. It wraps
// ErrGone, as the store would say.
type endedError struct {
	reason Reason
	err    error
}

func (e *endedError) Error() string {
	if e.err == nil {
		return "session ended: " + string(e.reason)
	}
	return fmt.Sprintf("session ended: %s (%v)", e.reason, e.err)
}

func (e *endedError) Unwrap() []error {
	if e.err == nil {
		return []error{driver.ErrGone}
	}
	return []error{driver.ErrGone, e.err}
}

// start begins to renew. sent was taken before Open was called. The store may have ended the
// session already, and told so while the answer of Open was under way: then it was never used,
// and the caller of Open closes it.
func (s *session) start(drv driver.Session, sent bootclock.Instant, granted time.Duration) error {
	if granted != driver.Forever {
		if err := s.client.cfg.checkTTL(granted); err != nil {
			return fmt.Errorf("%w (asked for %s, the store granted %s)", err, s.client.cfg.ttl, granted)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endErr != nil {
		return s.endErr
	}
	s.drv, s.sent, s.granted = drv, sent, granted
	if granted == driver.Forever {
		return nil
	}
	// Of the TTL as it was granted first: a later answer may be shorter because the renewal that
	// it tells of is older, and the safety margin must not shrink with it.
	s.margin = granted - s.client.cfg.trust(granted)
	s.timer = time.AfterFunc(min(s.remainingLocked(), trustCheck), s.checkTrust)
	go s.renew()
	return nil
}

// gone is the driver's SessionOptions.Gone.
func (s *session) gone(id string, err error) {
	if id == "" {
		s.end(ReasonSessionGone, err)
		return
	}
	s.mu.Lock()
	e, confirmed := s.entries[id], s.sent.At
	s.mu.Unlock()
	if e == nil {
		return
	}
	was := e.lose(ReasonDenied, err, confirmed)
	if was != released {
		s.remove(e) // after lose: Held finds that the entry is late, or that it is lost
	}
	// A release under way asks the store itself. It stays in entries, where the end of the session
	// and checkLeaving look for it: the store may not answer it any more.
	if was == pending {
		e.interrupt(err)
	}
}

// end ends the session for every lease and waiter in it, once, and has the store forget
// it in the background.
func (s *session) end(reason Reason, err error) {
	ended := &endedError{reason: reason, err: err}
	s.mu.Lock()
	if s.endErr != nil {
		s.mu.Unlock()
		return
	}
	s.endErr = ended
	if s.timer != nil {
		s.timer.Stop()
	}
	entries := slices.Collect(maps.Values(s.entries))
	clear(s.entries)
	confirmed := s.sent.At
	wait, drv := s.untilOverLocked(reason), s.drv
	s.mu.Unlock()

	// Holders first: they are the ones who could do harm.
	for _, e := range entries {
		e.lose(reason, err, confirmed)
	}
	for _, e := range entries {
		e.interrupt(ended)
	}
	s.stop(ended)
	if drv == nil {
		return // see start
	}
	s.client.inBackground(func() {
		sleep(s.client.background, wait)
		s.client.closeSession(drv)
	})
}

// over reports whether the session is known to have ended.
func (s *session) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endErr != nil
}

// add notes an entry before its request is sent, so that news about it find it.
func (s *session) add(e *entry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endErr != nil {
		return s.endErr
	}
	s.entries[e.id] = e
	return nil
}

func (s *session) remove(e *entry) {
	s.mu.Lock()
	delete(s.entries, e.id)
	delete(s.late, e)
	s.mu.Unlock()
}
