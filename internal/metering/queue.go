package metering

import (
	"context"
	"time"

	"github.com/hasplock/hasp"
)

// Length is the length of a queue at one moment.
type Length struct {
	Holders, Waiters int
	Oldest           time.Duration // how long the first waiter has waited, by its own clock; 0 without one
}

// Lengths reads the queues of the names, one after the other, and reports for each its length, or
// why it could not be read. All of them together may take timeout (0: 5 s), so that a store that
// does not answer delays the collector once by that, and not once for each name.
func Lengths(ctx context.Context, c *hasp.Client, timeout time.Duration, names []string, tell func(name string, l Length, err error)) {
	if timeout <= 0 {
		timeout = 5 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for _, name := range names {
		q, err := c.Inspect(ctx, name)
		l := Length{Holders: len(q.Holders), Waiters: len(q.Waiters)}
		if l.Waiters > 0 && !q.Waiters[0].Since.IsZero() { // etcdctl lock, for example, does not say when it began
			l.Oldest = max(0, time.Since(q.Waiters[0].Since)) // its clock may be ahead of ours
		}
		tell(name, l, err)
	}
}
