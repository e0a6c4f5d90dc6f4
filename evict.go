package hasp

import (
	"context"
	"errors"
	"fmt"

	"github.com/hasplock/hasp/driver"
)

// Evict removes somebody's entry from a queue, for operators: id is what Inspect shows.
// If it held, the next in the queue gets the lock with a higher fencing token, and the old
// holder is told as soon as its store can tell it, or at its next renewal. Until then it
// believes that it holds: exclusion is broken for that long, for a resource that does not
// check tokens. Ask first if there is time (see [AskHolder]).
//
// The error wraps ErrNotHeld if there is no such entry, and ErrUnsupported where the store
// cannot take a lock away.
func (c *Client) Evict(ctx context.Context, name, id string) error {
	err := c.evict(ctx, name, id)
	if err != nil {
		return c.wrap("evict "+id+" from", name, err)
	}
	return nil
}

func (c *Client) evict(ctx context.Context, name, id string) error {
	e, ok := c.backend.(driver.Evicter)
	switch {
	case ctx == nil:
		return errNilContext
	case id == "":
		return fmt.Errorf("%w: the id of the entry is empty", ErrInvalidOption)
	case c.isClosed():
		return ErrClosed
	case !ok:
		return fmt.Errorf("%w: it cannot remove another client's entry", ErrUnsupported)
	}
	if err := ValidateName(name); err != nil {
		return err
	}
	err := e.Evict(ctx, name, id)
	if errors.Is(err, driver.ErrGone) {
		return fmt.Errorf("%w: there is no such entry (any more)", ErrNotHeld)
	}
	return err
}
