package hasp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hasplock/hasp/driver"
)

// The states a caller may need to tell apart, for errors.Is. A context's own error is
// always kept in the chain beside them.
var (
	// ErrBusy: somebody else holds the lock and the caller asked not to wait.
	ErrBusy = errors.New("busy")
	// ErrQuarantine: the store may have forgotten locks, and grants none until they would have
	// expired. A try is refused, although no holder is known: it is not ErrBusy, so
	// that no program takes it for the sign that another does the work. A Lock waits it out.
	ErrQuarantine = errors.New("quarantine")
	// ErrLost: the lease ended before Release. The *LostError says why.
	ErrLost = errors.New("lock lost")
	// ErrNotHeld: there is nothing to release, since it was released before or is nil.
	ErrNotHeld = errors.New("not held")
	// ErrNotFound: there is no such entry, or no leader.
	ErrNotFound = errors.New("not found")
	// ErrUnknown: the request may or may not have reached the store. hasp goes on
	// cleaning up in the background; at the latest the TTL does.
	ErrUnknown = errors.New("outcome unknown")
	// ErrDeadlock: waiting would be waiting for oneself.
	ErrDeadlock = errors.New("deadlock")
	// ErrMismatch: the name is in use with another capacity or by another kind of lock.
	ErrMismatch = driver.ErrMismatch
	// ErrUnsupported: this store or strategy cannot do what was asked.
	ErrUnsupported = driver.ErrUnsupported
	// ErrRefused: the store answered that it will not do it: no permission, memory or disk
	// full, read-only. Nothing was changed.
	ErrRefused = driver.ErrRefused
	// ErrInvalid: what the caller gave is wrong: the lock's name ([driver.CheckName]), an option, a
	// URL, or a user or password that the store does not know. Nothing was changed.
	ErrInvalid = driver.ErrInvalid
	// ErrClosed: the client was closed.
	ErrClosed = driver.ErrClosed
)

// LockError says which lock, on which store, an error is about.
type LockError struct {
	Op      string // "lock", "release", "list", ...
	Name    string
	Backend string // never with a user or password
	Err     error
}

func (e *LockError) Error() string {
	return fmt.Sprintf("hasp: %s %q at %s: %v", e.Op, e.Name, e.Backend, e.Err)
}

// Unwrap returns the cause.
func (e *LockError) Unwrap() error { return e.Err }

// BusyError says what was in the way. It wraps
//   - ErrBusy, for a Try that found the lock taken;
//   - ErrQuarantine, for a Try that the store's quarantine refused;
//   - context.DeadlineExceeded, for a Lock that waited until its context's deadline. If it could
//     not learn who holds the lock (it was just passed on, the store did not answer), such a Lock
//     returns the context's error alone.
type BusyError struct {
	// Holder is in the way: the first, of a lock that several hold. It is the zero Owner where the
	// store did not name it in the answer to a Try; [Client.Inspect] asks.
	Holder Owner

	ID    string    // of that holder's entry, for [Client.Evict]; "" after a Try
	Since time.Time // when it asked for the lock, by its own clock; zero if that is not known

	// LooksOver is since when the holder's own stamp says that its time is over: see [Entry]. A
	// Try does not wait until that is certain if the holder's TTL is longer than this client's;
	// Lock does.
	LooksOver time.Time

	// Quarantine is for how long the store grants nothing, because it may have forgotten
	// locks (see docs/GUARANTEES.md); 0 if another client is in the way.
	Quarantine time.Duration

	Err error
}

// refusal is the error of a try that the store has refused.
func refusal(v driver.Verdict) error {
	e := &BusyError{Holder: decodeOwner(v.Holder).Owner, LooksOver: v.LooksOver, Quarantine: v.Quarantine, Err: ErrBusy}
	if v.Quarantine > 0 {
		e.Err = ErrQuarantine
	}
	return e
}

// refusedTry reports that a try was answered, with no.
func refusedTry(err error) bool { return errors.Is(err, ErrBusy) || errors.Is(err, ErrQuarantine) }

func (e *BusyError) Error() string {
	s := e.Err.Error() + "; held by another"
	if e.Quarantine > 0 {
		return fmt.Sprintf("%v; the store may have forgotten locks, and grants none for another %s", e.Err, e.Quarantine.Round(time.Millisecond))
	}
	if e.Holder != (Owner{}) {
		s = e.Err.Error() + "; held by " + e.Holder.String()
	}
	if !e.Since.IsZero() {
		s += ", which asked for it at " + e.Since.Format(time.RFC3339)
	}
	if !e.LooksOver.IsZero() {
		s += "; by its own clock its time is over since " + e.LooksOver.Format(time.RFC3339) + ", and a Lock takes it when that is certain"
	}
	return s
}

// Unwrap returns ErrBusy, ErrQuarantine or the context's error.
func (e *BusyError) Unwrap() error { return e.Err }

// Reason says how a lease was lost.
type Reason string

// The reasons of a loss.
const (
	ReasonExpired     Reason = "expired"      // no renewal succeeded in time; the store may hand the lock on
	ReasonDenied      Reason = "denied"       // the store says the entry is gone
	ReasonSessionGone Reason = "session gone" // the store says the client's whole session is gone
	ReasonClosed      Reason = "closed"       // the client was closed while it held
	ReasonClockJump   Reason = "clock jump"   // expired, and the machine slept for over half the TTL
	ReasonOverdue     Reason = "overdue"      // held for longer than MaxHold allows
	ReasonStalled     Reason = "stalled"      // no Progress for longer than StallAfter allows
)

// LostError is the cause of [Lease.Context] and the result of [Lease.Err] after a loss.
// It wraps ErrLost.
type LostError struct {
	Name      string
	Backend   string
	Token     uint64
	Reason    Reason
	Since     time.Time // when the loss was noticed (wall clock)
	Confirmed time.Time // when the store last confirmed the lease (wall clock)
	Err       error     // the last error of the store or the network; may be nil
}

func (e *LostError) Error() string {
	s := fmt.Sprintf("hasp: lock %q at %s lost: %s; last confirmed %s before",
		e.Name, e.Backend, e.Reason, e.Since.Sub(e.Confirmed).Round(time.Millisecond))
	if e.Err != nil {
		s += fmt.Sprintf(" (%v)", e.Err)
	}
	return s
}

// Unwrap makes errors.Is find ErrLost and the store's last error.
func (e *LostError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrLost}
	}
	return []error{ErrLost, e.Err}
}

var errNilContext = fmt.Errorf("%w: the context is nil", ErrInvalid)

// final reports errors that asking again cannot cure.
func final(err error) bool {
	return errors.Is(err, ErrMismatch) || errors.Is(err, ErrUnsupported) || errors.Is(err, ErrInvalid)
}

// storeError is an error of a store or its client that hides the errors of contexts in it. A dial
// or a request that was given up had a time-out of ours, or of the store's client. A caller would
// take its [context.DeadlineExceeded] for the end of the context that it has passed, and so for a
// lock that is taken.
type storeError struct{ err error }

func ofStore(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return &storeError{err}
	}
	return err
}

func (e *storeError) Error() string { return e.err.Error() }

// Is and As stand in for Unwrap, by which the context's error would be found.
func (e *storeError) Is(target error) bool {
	return target != context.DeadlineExceeded && target != context.Canceled && errors.Is(e.err, target)
}

func (e *storeError) As(target any) bool { return errors.As(e.err, target) }

// A Lock whose deadline is over asks the store who holds, by one bounded request, from a few
// goroutines of a client at once: the waiter knows its place, and not who is ahead. Rejected:
// asking before the deadline, which costs each wait a request and is old when it is needed; a
// method that asks later, when the holder is another.

const (
	// holderBound is for how long a Lock that is over its deadline waits for the name of the
	// holder: its caller wants to go on. One round trip, in good health.
	holderBound = 100 * time.Millisecond

	// holderRequests bounds the requests of a crowd whose deadline is the same.
	holderRequests = 16
)

// overdue adds to the error of a wait that its deadline has ended who holds the lock.
func (c *Client) overdue(ctx context.Context, r *request, err error) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return err // it was cancelled: its caller does not want the lock any more
	}
	defer c.asking.Add(-1)
	if c.asking.Add(1) > holderRequests {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), holderBound)
	defer cancel()
	q, lerr := c.inspect(ctx, r.name, 1)
	if lerr != nil || len(q.Holders) == 0 && q.Quarantine == 0 {
		return err
	}
	if len(q.Holders) == 0 {
		return &BusyError{Quarantine: q.Quarantine, Err: err}
	}
	h := q.Holders[0]
	return &BusyError{Holder: h.Owner, ID: h.ID, Since: h.Since, LooksOver: h.LooksOver, Err: err}
}
