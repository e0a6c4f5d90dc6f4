package hasp

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/hasplock/hasp/driver"
)

// anonymous counts the clients whose stores cannot say who they are.
var anonymous atomic.Uint64

// identity returns what tells the client's store from every other: the same for each client of
// one store, in any process. The label of a backend is for people, and tells neither: two
// databases can have one label, and one store two addresses. A store that cannot say it is
// taken for a different one, so that a lock is rather taken twice (and waits for itself) than
// silently not at all.
func (c *Client) identity(ctx context.Context) (string, error) {
	if known := c.known.Load(); known != nil {
		return *known, nil
	}
	id := fmt.Sprintf("%s #%d", c.backend, anonymous.Add(1))
	if i, ok := c.backend.(driver.Identifier); ok {
		var err error
		if id, err = i.Identity(ctx); err != nil {
			if c.isClosed() {
				return "", ErrClosed
			}
			return "", fmt.Errorf("it did not say which store it is: %w", err)
		}
	}
	c.known.CompareAndSwap(nil, &id) // several may have asked at once
	return *c.known.Load(), nil
}
