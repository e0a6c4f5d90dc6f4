//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"errors"
	"fmt"

	"github.com/hasplock/hasp/driver"
)

// damageError says that a file of the store is not what this package wrote. Nothing is
// repaired while any process uses the store: the owners of the lost entries
// may still hold.
type damageError struct {
	file, what string

	// restored says that entries which were in the file are not in it any more, although
	// others can use it: their owners hold no longer. There is nothing to repair.
	restored bool
}

func (e *damageError) Error() string {
	if e.restored {
		return fmt.Sprintf("%s: %s while it was in use; locks held in it are lost", e.file, e.what)
	}
	return fmt.Sprintf("%s is damaged: %s; end all processes that use this store, and the next one to open it repairs it",
		e.file, e.what)
}

// refusal is an error after which nothing is left in the store: no permission, no space,
// no descriptors, a damaged file. A local store has no answers that get lost, so every
// error is one, and the caller is told of it.
type refusal struct{ error }

func (e refusal) Unwrap() error        { return e.error }
func (e refusal) Is(target error) bool { return target == driver.ErrRefused }

// refuse wraps the errors of Enqueue and Open, unless the contract has a meaning for them.
func refuse(err error) error {
	for _, known := range []error{
		nil, context.Canceled, context.DeadlineExceeded,
		driver.ErrGone, driver.ErrMismatch, driver.ErrInvalid, driver.ErrUnsupported, driver.ErrClosed, driver.ErrRefused,
	} {
		if errors.Is(err, known) {
			return err
		}
	}
	return refusal{err}
}

func isDamage(err error) bool { return errors.As(err, new(*damageError)) }

// asGone makes damage final where an entry is to be removed: nothing in a broken file
// counts as an entry, and asking again would not end.
func asGone(err error) error {
	if isDamage(err) {
		return fmt.Errorf("%w: %w", driver.ErrGone, err)
	}
	return err
}

var errStoreClosed = errors.New("the store was closed")

// missingError is a waiter's error when it cannot be known whether an entry in front of
// it is alive.
type missingError struct {
	store string
	id    sessionID
}

func (e *missingError) Error() string {
	return fmt.Sprintf("the session file s/%s in %s was removed while an entry in the way depends on it; "+
		"if its process is gone, evict the entry", e.id, e.store)
}

// foreignError says that a file in our directory belongs to another user.
type foreignError struct{ uid uint32 }

func (e *foreignError) Error() string { return fmt.Sprintf("it belongs to uid %d, not to us", e.uid) }
