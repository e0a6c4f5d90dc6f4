package driver

import (
	"errors"
	"fmt"
)

// The sentinels a driver's errors wrap. Anything else means "outcome unknown".
var (
	// ErrGone: the store says that this entry or session does not exist. Final.
	ErrGone = errors.New("gone from the store")
	// ErrForgotten: there is no such entry, but the store may have forgotten it (another server
	// answers, or it was started anew), so that it is not known whether it was there to the end.
	// Final. See also Traits.Forgets.
	ErrForgotten = errors.New("the store may have forgotten it")
	// ErrMismatch: the entries already queued under this name have another capacity
	// or another format. Nothing was changed.
	ErrMismatch = errors.New("entries of another kind under this name")
	// ErrUnsupported: this store or strategy cannot do what was asked. Nothing was sent.
	ErrUnsupported = errors.New("not supported by this store")
	// ErrRefused: the store answered that it will not do it now: no permission, memory or
	// disk full, read-only. Nothing was changed. A caller that does not yet wait is told
	// at once; one that waits already is patient. An error that wraps ErrInvalid as well says
	// that patience is of no use: a user whom the server does not know.
	ErrRefused = errors.New("refused by the store")
	// ErrInvalid: a setting is wrong (a URL parameter, a TTL under the store's floor).
	ErrInvalid = errors.New("invalid setting")
	// ErrReadOnly: this user may look at the store and not lock in it. It comes with ErrInvalid.
	ErrReadOnly = errors.New("only to be looked at")
	// ErrClosed: the backend or session was closed by its owner.
	ErrClosed = errors.New("closed")
)

// MismatchError says which capacities disagree under a name. It wraps ErrMismatch.
type MismatchError struct {
	Name        string
	Want, Found int64 // capacities
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("%q is in use as %s, not as %s", e.Name, kind(e.Found), kind(e.Want))
}

// Unwrap returns ErrMismatch.
func (e *MismatchError) Unwrap() error { return ErrMismatch }

func kind(capacity int64) string {
	if capacity == Whole {
		return "a mutex or read-write lock"
	}
	return fmt.Sprintf("a semaphore of %d", capacity)
}
