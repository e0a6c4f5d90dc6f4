package pglock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
)

// boundSession has a client's locks and waiters, each on a separate connection.
type boundSession struct {
	bound *bound
	opts  driver.SessionOptions

	done   context.Context // ended by Close: every connection ends with it
	finish context.CancelFunc

	delayed delayed // what is done for locks that are held for longer

	mu      sync.Mutex
	closed  bool
	tickets map[*boundTicket]bool // those that may have a connection
}

// granted is the TTL within the bounds that the connections set.
func (s *boundSession) granted() time.Duration {
	return min(max(s.opts.TTL, leastGranted), mostGranted)
}

// Ticket prepares an entry.
func (s *boundSession) Ticket(r driver.Request) driver.Ticket {
	return &boundTicket{session: s, request: r}
}

// KeepAlive has the server answer on every connection that holds. A request that is not
// answered in time goes on: giving the connection up would give up the lock. Only a request
// sent by this very call counts, since the core counts from here.
func (s *boundSession) KeepAlive(ctx context.Context) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	var holds []*heldConn
	for t := range s.tickets {
		select {
		case <-t.attempt.ended:
			if t.attempt.hold != nil && !t.left {
				holds = append(holds, t.attempt.hold)
			}
		default:
		}
	}
	s.mu.Unlock()
	answers := make(chan error, len(holds)) // has room for all: after the first error the rest is not received
	for _, h := range holds {
		go func() {
			within, cancel := context.WithTimeout(s.done, s.granted())
			defer cancel()
			answers <- h.use(within, false, func(ctx context.Context, c *pgxLink) error {
				err := c.script(ctx, "SELECT 1")
				if !s.bound.kind.holds(c) {
					c.close() // and so it is lost, and told
				}
				return err
			})
		}()
	}
	for range holds {
		select {
		case err := <-answers:
			// A broken connection has been told of; the others are not concerned.
			if err != nil && sqlState(err) == "" && s.done.Err() != nil {
				return 0, errSessionClosed
			}
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return s.granted(), nil
}

// Close releases everything. What is not answered in time ends with its connection.
func (s *boundSession) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	var all []*boundTicket
	for t := range s.tickets {
		t.attempt.cancel() // has no effect on what is held
		all = append(all, t)
	}
	s.mu.Unlock()
	left := make(chan error, len(all))
	for _, t := range all {
		go func() { left <- t.Leave(ctx) }()
	}
	var err error
	for range all {
		if e := <-left; e != nil && !errors.Is(e, driver.ErrGone) {
			err = e
		}
	}
	s.finish()
	return err
}
