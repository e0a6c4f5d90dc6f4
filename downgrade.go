package hasp

import (
	"context"
	"errors"
	"fmt"

	"github.com/hasplock/hasp/driver"
)

// Downgrade makes the writer of an [RWMutex] a reader without giving the lock up in
// between: no writer can come in, and the readers next in the queue come in beside it. The
// lease and its token stay the same. There is no way back: two readers that both waited to
// become the writer would wait for each other.
//
// The error wraps ErrUnsupported where the store cannot change an entry in place, ErrLost
// or ErrNotHeld if the lease has ended, and ErrUnknown if the store has not answered: it
// may then be a reader already, and calling again is safe. Until the store answers, hasp
// treats the lease as a reader's: taking the lock again with [Reentrant] as writer fails. A lock
// taken several times with Reentrant must be released down to one lease first.
func (l *Lease) Downgrade(ctx context.Context) error {
	if l == nil {
		return fmt.Errorf("hasp: downgrade of a nil lease: %w", ErrNotHeld)
	}
	err := l.downgrade(ctx)
	if err == nil || errors.As(err, new(*LostError)) {
		return err
	}
	return l.entry.session.client.wrap(ctx, "downgrade", l.Name(), err)
}

func (l *Lease) downgrade(ctx context.Context) error {
	if ctx == nil {
		return errNilContext
	}
	e := l.entry
	d, ok := e.ticket.(driver.Downgrader)
	switch err := l.Err(); {
	case err != nil:
		return err
	case int64(e.capacity) != driver.Whole:
		return fmt.Errorf("%w: permits of a semaphore are released, not downgraded", ErrUnsupported)
	case !ok || !e.session.client.traits.Shared:
		return fmt.Errorf("%w: it cannot make a writer a reader in place", ErrUnsupported)
	}
	if err := l.beginDowngrade(); err != nil {
		return err
	}
	switch err := d.Downgrade(ctx, 1); {
	case errors.Is(err, driver.ErrGone):
		return e.denied(err)
	case final(err), errors.Is(err, driver.ErrRefused):
		e.mu.Lock()
		e.downgrades-- // it was not done, and will not be
		e.mu.Unlock()
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", ErrUnknown, err) // it stays counted: it may be done yet
	}
	e.mu.Lock()
	e.units = 1
	e.downgrades--
	e.mu.Unlock()
	return l.Err()
}

// beginDowngrade has the entry count as a reader's from before the request is sent: the store
// may let other readers in before its answer is read. In the same step it makes sure that
// no caller holds the lock a second time as writer, and none can from then on.
func (l *Lease) beginDowngrade() error {
	e := l.entry
	e.mu.Lock()
	defer e.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	if !e.onlyLocked(l) {
		return fmt.Errorf("%w: the lock was taken several times; release all leases but one first", ErrDeadlock)
	}
	e.downgrades++
	return nil
}

// certainUnitsLocked is how much of the capacity the entry has for certain: a reader's unit while
// a Downgrade is under way or has not been answered, since it may be done at any moment.
func (e *entry) certainUnitsLocked() int64 {
	if e.downgrades > 0 {
		return 1
	}
	return int64(e.units)
}
