package pglock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/keepalive"
)

// boundSession has a client's locks and waiters, each on a separate connection.
type boundSession struct {
	bound *bound
	opts  driver.SessionOptions

	done   context.Context // ended by Close: every connection ends with it
	finish context.CancelFunc

	mu      sync.Mutex
	renewed time.Time // from when the core counts its trust at least: the last KeepAlive that has renewed something, or Open
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
// answered in time goes on: giving the connection up would give up the lock. It counts from the
// call that has sent it. A connection that is silent while others answer is late alone: one that a
// router on its way has forgotten, or whose process of the server stands still, must not take the
// client's other locks with it.
func (s *boundSession) KeepAlive(ctx context.Context) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	began := time.Now()
	holds := s.holds()
	answers := make(chan error, len(holds)) // has room for all: after the end of ctx the rest is not received
	for _, h := range holds {
		go func() { answers <- s.answersOn(h, began) }()
	}
	for n := 0; n < len(holds) && ctx.Err() == nil; n++ {
		select {
		case err := <-answers:
			// A broken connection has been told of; the others are not concerned.
			if err != nil && sqlState(err) == "" && s.done.Err() != nil {
				return 0, errSessionClosed
			}
		case <-ctx.Done():
		}
	}
	return s.renewedSince(ctx, holds, began)
}

// holds are the connections that hold, by their tickets.
func (s *boundSession) holds() map[*boundTicket]*heldConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	holds := map[*boundTicket]*heldConn{}
	for t := range s.tickets {
		select {
		case <-t.attempt.ended:
			if t.attempt.hold != nil && !t.left {
				holds[t] = t.attempt.hold
			}
		default:
		}
	}
	return holds
}

// answersOn has the server answer on a connection, and notes it.
func (s *boundSession) answersOn(h *heldConn, began time.Time) error {
	within, cancel := context.WithTimeout(s.done, s.granted())
	defer cancel()
	err := h.use(within, false, func(ctx context.Context, c *pgxLink) error {
		return c.script(ctx, "SELECT 1")
	})
	if err == nil || sqlState(err) != "" {
		s.mu.Lock()
		defer s.mu.Unlock()
		if h.renewed.Before(began) {
			h.renewed = began // before the request was sent; also if the call that has sent it has given up since
		}
	}
	return err
}

// renewedSince is the result of a KeepAlive. A hold that is new begins with renewed, and not with
// the moment in which we learn of it: this process may have been stopped since the server granted
// it, and the core does not trust it for longer.
func (s *boundSession) renewedSince(ctx context.Context, holds map[*boundTicket]*heldConn, began time.Time) (time.Duration, error) {
	tally := keepalive.Tally{TTL: s.granted(), Late: map[string]time.Duration{}, ServerFailed: true}
	s.mu.Lock()
	defer s.mu.Unlock()
	for t, h := range holds {
		if t.left || t.gone {
			continue
		}
		tally.All++
		if h.renewed.Before(began) {
			tally.Late[t.request.ID] = keepalive.Left(tally.TTL, h.renewed, began)
		}
	}
	granted, err := tally.Answer(ctx)
	if err == nil || errors.As(err, new(*driver.PartialRenewal)) {
		s.renewed = began
	}
	return granted, err
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
