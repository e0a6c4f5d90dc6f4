package hasp

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/bootclock"
)

// entry is the client's side of one place in a store's queue, from before the request is sent until
// nothing of it is left. It has one lease, which lives inside it (one allocation), unless the lock
// was taken once more with Reentrant: the end of the entry ends all its leases, the last release
// ends the entry. Rejected: a counter in the lease, which cannot tell which owner released twice.
type entry struct {
	session *session
	ticket  driver.Ticket
	id      string
	name    string

	// driver.Whole at most. The size of an entry matters: programs hold ten thousand, and the
	// allocator rounds up in steps of 32 bytes here.
	capacity   int32
	units      int32      // guarded by mu; less after a Downgrade
	downgrades int32      // guarded by mu; those under way or never answered
	state      entryState // guarded by mu

	mu      sync.Mutex
	cancel  context.CancelCauseFunc // of the acquisition or release under way; else nil
	token   uint64
	err     error     // why it is no longer held
	leaveBy time.Time // when its release is given up; zero: no release is under way
	limit   *limit    // nil: held for as long as it is not released
	newest  *Lease    // of those that are neither released nor lost; each has the one before it
	first   Lease     // the one that nearly all entries have: one allocation for all of this
}

type entryState int32

const (
	pending entryState = iota // not yet granted, and not yet refused
	held
	lost
	released
)

// trusted reports whether the entry may be relied on, by the clocks and never by a flag: the
// session's deadline and the entry's own limits. A caller that finds either over ends the entry.
func (e *entry) trusted() bool {
	return e.session.trusts(e) && e.withinLimit()
}

// endIfOver ends the entry if its trust is over, for callers that read its state next.
func (e *entry) endIfOver() { e.trusted() }

// grant makes a pending entry held and returns its first lease. It fails if the entry or
// its session was lost before the answer was read: a grant that arrives after the
// deadline, to a process that was stopped meanwhile, is none.
func (e *entry) grant(parent context.Context, token uint64) (*Lease, error) {
	s := e.session
	if s.client.traits.Fencing == (token == 0) {
		return nil, fmt.Errorf("driver error: token %d from a store with Fencing %t", token, s.client.traits.Fencing)
	}
	if !s.trusts(e) && s.over() { // an entry that was late by itself is lost by now
		s.mu.Lock()
		defer s.mu.Unlock()
		return nil, s.endErr
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state != pending {
		return nil, fmt.Errorf("%w: %w", driver.ErrGone, e.err)
	}
	e.state, e.token, e.cancel = held, token, nil
	e.addLocked(&e.first, parent)
	e.startLimitLocked(e.first.since)
	return &e.first, nil
}

// addLocked adds a lease that begins now. The boot clock costs a system call, and is only for those
// that are bounded by limits.
func (e *entry) addLocked(l *Lease, parent context.Context) {
	l.entry, l.parent, l.since.At = e, parent, time.Now()
	if e.limit != nil {
		l.since.Boot = bootclock.Boot()
	}
	l.before, e.newest = e.newest, l
}

// again adds a lease to an entry that is held: to take the lock again is to hold it twice.
// Its size is looked at in the same step: a Downgrade may have begun since the caller looked.
func (e *entry) again(parent context.Context, units int64) (*Lease, error) {
	e.endIfOver()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state != held {
		return nil, e.err
	}
	if units > e.certainUnitsLocked() {
		return nil, fmt.Errorf("%w: a reader cannot become the writer while it reads: release the read lock first", ErrDeadlock)
	}
	l := new(Lease)
	e.addLocked(l, parent)
	return l, nil
}

// interrupt cancels the entry's request under way, for a cause that its session has found.
func (e *entry) interrupt(cause error) {
	e.mu.Lock()
	cancel := e.cancel
	e.mu.Unlock()
	if cancel != nil {
		cancel(cause) // without e.mu: a caller's context may be that of a lease, which looks at its entry when a child ends
	}
}

// lose ends a held or pending entry, and returns what it was. The first of lose and the
// last Release wins.
func (e *entry) lose(reason Reason, err error, confirmed time.Time) (was entryState) {
	c := e.session.client
	e.mu.Lock()
	was = e.state
	if was != held && was != pending {
		e.mu.Unlock()
		return was
	}
	le := &LostError{
		Name: e.name, Backend: c.backend.String(), Token: e.token,
		Reason: reason, Since: time.Now(), Confirmed: confirmed, Err: ofStore(err),
	}
	e.state, e.err = lost, le
	e.stopLimitLocked()
	event := Event{Kind: EventLost, Name: le.Name, Token: le.Token, Err: le}
	for l := e.newest; l != nil; l = l.before {
		event.Context, event.Hold = l.parent, le.Since.Sub(l.since.At) // at the end, the oldest's
		l.endLocked(le)
	}
	e.newest = nil
	e.mu.Unlock()
	if was == held {
		c.event(event)
	}
	return was
}

// denied ends the entry after the store said that it is gone, and returns why it ended.
func (e *entry) denied(err error) error {
	if e.lose(ReasonDenied, err, e.session.confirmed()) != released {
		e.session.remove(e) // of a lost lease nothing is left to do
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// Reentrant lets the holder of the lock take it again: Lock and TryLock with a context
// made from [Lease.Context] return another lease of the same entry at once, with the same
// token, and the store has the lock until the last of them is released. Without Reentrant
// such a Lock fails with ErrDeadlock, since it would wait for itself for ever.
//
// Go knows no owner of a goroutine, so the owner travels in the context. A writer may
// take the lock again as writer or reader, a reader as reader. A reader cannot become the
// writer: two that tried would wait for each other. [MinHold] and the other limits are
// those of the first lease.
func Reentrant() LockOption {
	return func(c *lockConfig) { c.reentrant = true }
}

// again serves a request whose context holds the name already.
func (l *Lease) again(ctx context.Context, r *request) (*Lease, error) {
	if !r.reentrant {
		return nil, fmt.Errorf("%w: this context already holds the lock, and would wait for itself for ever (see Reentrant)", ErrDeadlock)
	}
	return l.entry.again(ctx, r.units)
}

// onlyLocked reports whether a lease that has not ended is the entry's only one.
func (e *entry) onlyLocked(l *Lease) bool { return e.newest == l && l.before == nil }

// dropLocked takes a lease out that is not the only one.
func (e *entry) dropLocked(l *Lease) {
	at := &e.newest
	for *at != l {
		at = &(*at).before
	}
	*at, l.before = l.before, nil
}
