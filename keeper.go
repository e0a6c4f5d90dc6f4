package hasp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/driver"
)

// session is the client's side of a driver.Session: which entries live in it, and until
// when it may be trusted. This file has the only renewal loop and the only trust timer.
//
// One deadline serves all leases of a session: the driver's promise is that no entry is
// removed for the granted time, counted from before the last successful keepalive, also
// not one entered since.
//
// Order of locks: Client.mu, then session.mu, then entry.mu.
type session struct {
	client *Client
	drv    driver.Session

	done context.Context // ended with the session; the cause is its *endedError
	stop context.CancelCauseFunc

	mu      sync.Mutex
	endErr  *endedError   // nil while it lives
	sent    instant       // just before the last good keepalive (or Open) was sent
	granted time.Duration // by that call
	timer   *time.Timer   // the trust timer
	lastErr error         // of the last failed renewal since then
	entries map[string]*entry

	leaving atomic.Int64 // releases under way
}

// endedError tells a waiter that its place in the queue went with the session. It wraps
// ErrGone, which is what the store would say.
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

// trustCheck is the longest sleep of the trust timer. Timers stand still while a machine
// is suspended; with this, a loss during the suspension is signalled within a second of
// waking up, and Held tells it at once.
const trustCheck = time.Second

// start begins to renew. sent was taken before Open was called.
func (s *session) start(sent instant, granted time.Duration) error {
	if granted != driver.Forever {
		if err := s.client.cfg.checkTrust(granted); err != nil {
			return fmt.Errorf("%w (asked for %s, the store granted %s)", err, s.client.cfg.ttl, granted)
		}
	}
	s.sent, s.granted = sent, granted
	if granted == driver.Forever {
		return nil
	}
	s.mu.Lock()
	s.timer = time.AfterFunc(min(s.remainingLocked(), trustCheck), s.checkTrust)
	s.mu.Unlock()
	go s.renew()
	return nil
}

// remainingLocked is how long the session may still be trusted.
func (s *session) remainingLocked() time.Duration {
	if s.granted == driver.Forever {
		return driver.Forever
	}
	elapsed, _ := since(s.sent)
	return s.client.cfg.trust(s.granted) - elapsed
}

// trusted computes from the clocks, never from a flag: after a pause its first call must
// already say no. Whoever finds the trust over ends the session, so that a keepalive
// whose answer arrives later cannot bring it back to life (S6).
func (s *session) trusted() bool {
	s.mu.Lock()
	if s.endErr != nil {
		s.mu.Unlock()
		return false
	}
	if s.remainingLocked() > 0 {
		s.mu.Unlock()
		return true
	}
	s.mu.Unlock()
	s.expire()
	return false
}

// checkTrust is the trust timer. It runs on its own goroutine, so a renewal that hangs
// cannot delay it. It is never reset by renewals: it looks, and sleeps for what is left.
func (s *session) checkTrust() {
	if !s.trusted() {
		return
	}
	s.checkLeaving()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endErr == nil {
		s.timer.Reset(min(s.remainingLocked(), trustCheck))
	}
}

// checkLeaving ends the releases that have gone on for too long. An entry is in s.entries
// for as long as its release goes on.
func (s *session) checkLeaving() {
	if s.leaving.Load() == 0 {
		return // nearly always; the entries may be many
	}
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.entries))
	s.mu.Unlock()
	for _, e := range all {
		if e.leavesTooLong() {
			e.interrupt(errLeaseOver)
		}
	}
}

func (s *session) expire() {
	s.mu.Lock()
	_, suspended := since(s.sent)
	reason := Expired
	if suspended > s.granted/2 {
		reason = ClockJump // without the sleep, the lease would have lasted
	}
	err := s.lastErr
	s.mu.Unlock()
	s.end(reason, err)
}

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
		case err == nil:
			failures = backoff{}
			wait = s.untilRenewal()
			s.client.event(Event{Kind: Renewed, Margin: margin, Took: took})
		case errors.Is(err, driver.ErrGone):
			s.end(SessionGone, err)
		default:
			wait = failures.next()
			s.client.event(Event{Kind: RenewFailed, Margin: margin, Took: took, Err: err})
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
	ctx, cancel := context.WithTimeout(s.done, max(left/2, minGuard/2))
	defer cancel()

	sent := now() // before the call: a slow answer must not lengthen the lease
	granted, err := s.drv.KeepAlive(ctx)

	if !s.trusted() { // the answer came too late to count
		return 0, fmt.Errorf("renewal answered after the deadline: %w", context.DeadlineExceeded)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	margin = s.remainingLocked()
	if err != nil {
		s.lastErr = err
		return margin, err
	}
	s.sent, s.granted, s.lastErr = sent, granted, nil
	return margin, nil
}

// gone is the driver's SessionOptions.Gone.
func (s *session) gone(id string, err error) {
	if id == "" {
		s.end(SessionGone, err)
		return
	}
	s.mu.Lock()
	e := s.entries[id]
	delete(s.entries, id)
	confirmed := s.sent.at
	s.mu.Unlock()
	if e != nil && e.lose(Denied, err, confirmed) == pending {
		e.interrupt(err) // a waiter; not a release under way, which asks the store itself
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
	confirmed := s.sent.at
	s.mu.Unlock()

	// Holders first: they are the ones who could do harm.
	for _, e := range entries {
		e.lose(reason, err, confirmed)
	}
	for _, e := range entries {
		e.interrupt(ended)
	}
	s.stop(ended)
	s.client.inBackground(func() { s.client.closeSession(s.drv) })
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
	s.mu.Unlock()
}

// deadline is when trust ends if nothing is renewed from now on; zero if never.
func (s *session) deadline() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.granted == driver.Forever {
		return time.Time{}
	}
	return time.Now().Add(s.remainingLocked())
}

// leaveBy is when a release that begins now is given up; zero if entries last for ever.
func (s *session) leaveBy() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.granted == driver.Forever {
		return time.Time{}
	}
	return time.Now().Add(leaveTTLs * s.granted)
}

// confirmed is when the store last vouched for the session's entries.
func (s *session) confirmed() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent.at
}
