package hasp

import (
	"context"
	"errors"
	"time"
)

// WaitError is the error of a Lock that waited for its turn until its context's deadline. It wraps
// context.DeadlineExceeded, and it says who was in the way then. Without that knowledge (the lock
// was just passed on, the store did not answer) Lock returns the context's error alone.
type WaitError struct {
	Holder Owner     // the first, of a lock that several hold
	ID     string    // of that holder's entry, for [Client.Evict]
	Since  time.Time // when it asked for the lock, by its own clock; zero if the store does not know
	Err    error
}

func (e *WaitError) Error() string {
	s := e.Err.Error() + "; held by " + e.Holder.String()
	if !e.Since.IsZero() {
		s += ", which asked for it at " + e.Since.Format(time.RFC3339)
	}
	return s
}

// Unwrap returns the context's error.
func (e *WaitError) Unwrap() error { return e.Err }

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
	if lerr != nil || len(q.Holders) == 0 {
		return err
	}
	h := q.Holders[0]
	return &WaitError{Holder: h.Owner, ID: h.ID, Since: h.Since, Err: err}
}
