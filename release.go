package hasp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Release gives the lock back, for those who look at the result; [Lease.Unlock] is for defer. nil
// says that the lease was valid to the end and that the store has confirmed that it is gone.
// Otherwise the error wraps
//   - ErrLost: the lease was lost before; what is left in the store is removed;
//   - ErrNotHeld: it was released before, or is nil;
//   - ErrUnknown: the store has not answered, until ctx or the lease ended, or for three TTLs.
//     It may still hold the lock for us; hasp goes on releasing in the background;
//   - ErrInvalid: the store refuses it (a right is missing), and keeps the lock for a TTL.
//
// From the moment of the call Held is false and Context is cancelled, with any result.
// If ctx has ended already, the lock is released in the background and the result is
// ErrUnknown.
//
// A lock that was taken more than once with [Reentrant] stays in the store until the last
// of its leases is released. With [MinHold] Release waits until that time is over.
func (l *Lease) Release(ctx context.Context) error {
	if l == nil {
		return fmt.Errorf("hasp: release of a nil lease: %w", ErrNotHeld)
	}
	err := l.release(ctx, true)
	if err == nil || errors.As(err, new(*LostError)) {
		return err // a LostError names lock and store itself
	}
	return l.entry.session.client.wrap(ctx, "release", l.entry.name, err)
}

func (l *Lease) release(caller context.Context, worked bool) error {
	e := l.entry
	s := e.session
	if caller == nil {
		caller = nilContext
	}
	e.endIfOver()
	// Ends with the caller's context or with the session: without trust there is nothing
	// left to confirm.
	ctx, cancel := context.WithCancelCause(caller)
	defer cancel(nil)
	last, err := l.end(cancel)
	if err != nil || !last {
		return err
	}
	if worked {
		err = e.awaitMinHold(ctx)
	}
	if err == nil {
		err = e.leave(ctx)
	}
	s.remove(e)
	l.reportRelease(caller, err)
	return err
}

// releaseUnwanted gives back what a call has got, and its caller will not see: at once, since
// MinHold is for work, and none was done. (Not so if the entry had a lease before.)
func (c *Client) releaseUnwanted(l *Lease) {
	c.inBackground(func() {
		ctx, cancel := context.WithCancel(context.WithoutCancel(l.parent))
		defer cancel()
		defer context.AfterFunc(c.background, cancel)()
		_ = l.release(ctx, l != &l.entry.first) // else the session goes on trying
	})
}

func (l *Lease) reportRelease(ctx context.Context, err error) {
	e := l.entry
	if !e.session.client.observed() {
		return // without a look at the clock
	}
	e.session.client.event(Event{
		Kind: EventReleased, Context: ctx, Name: e.name, Token: e.token, Hold: time.Since(l.since.At), Err: err,
	})
}

// end ends the trust in this lease, before any request leaves: once the store has that,
// the next may hold. last reports that no other lease of the entry is left, so that the
// entry is to be removed, by a call that cancel ends.
func (l *Lease) end(cancel context.CancelCauseFunc) (last bool, err error) {
	e := l.entry
	e.mu.Lock()
	defer e.mu.Unlock()
	if l.err != nil {
		return false, l.err
	}
	l.endLocked(errReleased)
	if !e.onlyLocked(l) {
		e.dropLocked(l)
		return false, nil
	}
	e.newest = nil
	e.state, e.err, e.cancel = released, errReleased, cancel
	e.stopLimitLocked()
	return true, nil
}

var errReleased = fmt.Errorf("%w: it was released", ErrNotHeld)

// leave removes the entry and reports whether it was valid to the end. After an unanswered attempt
// it repeats the request, and an entry that is then gone was removed by us: as long as the session
// is trusted the store removes it for no other request, but for an eviction, which is reported
// separately. A store that may have forgotten it (a restart without its file, a failover) may have
// granted it to the next before our first attempt, so that nothing is known there (S7).
//
// The client may be closed meanwhile, which ends the session. What was confirmed is good all the
// same: the lease ended with the call of Release, and until then the clocks vouch for it.
//
// It goes on until the session ends, but for no longer than leaveTTLs: where each entry has its own
// expiry, a session without entries is renewed without asking the store, and would never end. The
// trust timer sees to it (session.checkLeaving). Rejected: a context with a deadline for each
// release, seven allocations beside the ten of a lock and unlock.
func (e *entry) leave(ctx context.Context) error {
	s := e.session
	by := s.leaveBy()
	e.mu.Lock()
	e.leaveBy = by
	e.mu.Unlock()
	s.leaving.Add(1)
	defer s.leaving.Add(-1)
	var b backoff
	for asked := false; ; asked = true {
		if ctx.Err() != nil {
			s.client.cleanTicket(ctx, s, e.ticket)
			return fmt.Errorf("%w: %w", ErrUnknown, contextError(ctx))
		}
		switch err := e.ticket.Leave(ctx); {
		case err == nil && s.wasHeld(e):
			return nil
		case asked && errors.Is(err, driver.ErrGone) && s.trusts(e):
			if s.client.traits.Forgets {
				return fmt.Errorf("%w: it is gone, but the store did not say that we removed it, and may have forgotten it", ErrUnknown)
			}
			return nil
		case err == nil, errors.Is(err, driver.ErrGone):
			return e.lostAtRelease(err)
		case errors.Is(err, driver.ErrForgotten):
			return fmt.Errorf("%w: %w", ErrUnknown, err)
		case final(err):
			return err // the entry is not renewed any more, and ends with the TTL
		}
		b.sleep(ctx)
	}
}

// leaveTTLs is for how many TTLs a release is tried. After one the entry has expired in those
// stores that it is for; the others may be slow, and yet renew the session.
const leaveTTLs = 3

var errLeaseOver = errors.New("the store has not confirmed it for so long that the lease would be over")

// lostAtRelease is for the two ways in which only the release itself finds out: the
// deadline passed while it was under way, or the store had no such entry.
func (e *entry) lostAtRelease(err error) error {
	s := e.session
	reason := ReasonDenied
	if err == nil {
		reason = ReasonExpired
	} else if s.closedByUs() {
		reason = ReasonClosed // which removes all entries
	}
	return &LostError{
		Name: e.name, Backend: s.client.backend.String(), Token: e.token,
		Reason: reason, Since: time.Now(), Confirmed: s.confirmed(), Err: ofStore(err),
	}
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

// leavesTooLong reports a release that has gone on for too long.
func (e *entry) leavesTooLong() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.leaveBy.IsZero() && !time.Now().Before(e.leaveBy)
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

// Unlock is for defer, Release for those who look at its error. A client without observers logs: an
// error that goes unheard is worse than a line too many in the log. Rejected: a Release without a
// context (it hides how long it may take); a panic at a loss (it would replace the panic or the
// error under way).

// unlockBound is how long Unlock waits for the store: as long as Close does.
const unlockBound = closeBound

// Unlock gives the lock back, in a deferred call:
//
//	defer lease.Unlock()
//
// It is [Lease.Release] with a fresh context, which has the values of the one given to Lock and
// ends after five seconds ([MinHold] not counted); what the store has not confirmed by then is done
// in the background. It does nothing if the lease was released before, or is nil: so a function may
// defer Unlock for its early returns, and look at the error of Release at its end.
//
// An Unlock that finds the lease lost, or whose outcome is unknown, has no error to return. The
// client's observers are told ([EventLost], or [EventReleased] with Err); if it has none,
// log/slog's default logger is. See [SlogObserver].
func (l *Lease) Unlock() {
	if l != nil {
		_ = l.unlock() // told
	}
}

func (l *Lease) unlock() error {
	e := l.entry
	e.mu.Lock()
	parent, bound := l.parent, unlockBound
	if e.limit != nil {
		bound += max(e.minLeftLocked(), 0) // which Release waits for
	}
	e.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(parent), bound)
	defer cancel()
	err := l.Release(ctx)
	if errors.Is(err, ErrNotHeld) {
		return nil
	}
	if err != nil {
		e.session.client.logUnheard(Event{
			Kind: EventReleased, Context: ctx, Name: e.name, Token: e.token, Hold: time.Since(l.since.At), Err: err,
		})
	}
	return err
}

// Unlock gives all the locks back, at the same time, in a deferred call. See [Lease.Unlock].
func (m *MultiLease) Unlock() {
	if m != nil {
		_ = m.together((*Lease).unlock)
	}
}
