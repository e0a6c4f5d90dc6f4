package fencing

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// The errors that callers tell apart, with errors.Is.
var (
	// ErrStale: the resource has seen a greater token. The lock was lost, another client has or had
	// it since, and nothing was written. This is final: this holder can never write again.
	ErrStale = errors.New("stale fencing token")
	// ErrConflict: others changed the same data at the same time, in each of the allowed tries.
	// Nothing was written, and the caller may try again.
	ErrConflict = errors.New("conflict")
	// ErrInvalid: the name, the token or a setting cannot be used. Nothing was sent.
	ErrInvalid = errors.New("invalid use of a fence")
)

// StaleError says which lock was lost, and to which token. It wraps ErrStale.
type StaleError struct {
	Name  string // of the lock
	Token uint64 // of the refused write
	Seen  uint64 // greatest that the resource has seen
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("token %d of lock %q is stale, %d has been here: the lock was lost and nothing was written; lock again before the next write",
		e.Token, e.Name, e.Seen)
}

// Unwrap returns ErrStale.
func (e *StaleError) Unwrap() error { return ErrStale }

// Check reports whether a lock name and a token can be used with a fence: the name by the rule of
// every lock name (1 to 512 bytes of UTF-8 without NUL), the token from 1 to the greatest int64. A
// lease has token 0 if its store gives no tokens: a fence that let it pass would protect nothing.
func Check(name string, token uint64) error {
	switch {
	case name == "" || len(name) > 512 || !utf8.ValidString(name) || strings.ContainsRune(name, 0):
		return fmt.Errorf("%w: a lock name has 1 to 512 bytes of UTF-8 and no NUL", ErrInvalid)
	case token == 0:
		return fmt.Errorf("%w: lock %q has no fencing token (0); its store gives none, so no resource can fence it: use a store with Traits().Fencing",
			ErrInvalid, name)
	case token > math.MaxInt64:
		return fmt.Errorf("%w: token %d of lock %q does not fit an int64, so no lock has given it", ErrInvalid, token, name)
	}
	return nil
}

// Compare returns a *StaleError if token is smaller than seen. It is for fences that you write
// yourself; they must make it one atomic step with the write.
func Compare(name string, token, seen uint64) error {
	if token < seen {
		return &StaleError{Name: name, Token: token, Seen: seen}
	}
	return nil
}
