//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"errors"
	"fmt"

	"github.com/hasplock/hasp/driver"
)

// damageError says that a file of the store is not what this package wrote. Nothing is
// repaired while anybody uses the store: whatever the lost entries were, their owners
// may still hold.
type damageError struct {
	file, what string

	// undone says that entries which stood in the file are not in it any more, although
	// others can use it: their owners hold no longer. There is nothing to repair.
	undone bool
}

func (e *damageError) Error() string {
	if e.undone {
		return fmt.Sprintf("%s: %s while it was in use; whoever held a lock in it holds no longer", e.file, e.what)
	}
	return fmt.Sprintf("%s is damaged: %s; end all processes that use this store, and the next one to open it repairs it",
		e.file, e.what)
}

// refusal is an error after which nothing is left in the store: no permission, no space,
// no descriptors, a damaged file. A local store has no answers that get lost, so every
// error is one, and the caller shall hear of it.
type refusal struct{ error }

func (e refusal) Unwrap() error        { return e.error }
func (e refusal) Is(target error) bool { return target == driver.ErrRefused }

// refuse wraps what Enqueue and Open return, unless the error has a meaning of its own.
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
