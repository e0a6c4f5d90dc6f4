package connlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/bootclock"
	"github.com/hasplock/hasp/driver/kit/keepalive"
)

// Session has a client's locks and waiters, each on a separate connection. The server knows nothing
// of it.
type Session[C any] struct {
	// Granted is the TTL within the bounds that the connections set.
	Granted time.Duration

	// Done ends with the session.
	Done   context.Context
	finish context.CancelFunc

	store Store[C]
	gone  func(id string, err error)

	mu      sync.Mutex
	renewed bootclock.Instant // from when the core counts its trust at least: the last KeepAlive that has renewed something, or Open
	closed  bool
	tickets map[*Ticket[C]]bool // those that may have a connection
}

// New returns a session without tickets. began is when the call of Open began, from which the core
// counts.
func New[C any](store Store[C], o driver.SessionOptions, began bootclock.Instant) *Session[C] {
	s := &Session[C]{store: store, gone: o.Gone, Granted: min(max(o.TTL, leastGranted), mostGranted), renewed: began, tickets: map[*Ticket[C]]bool{}}
	s.Done, s.finish = context.WithCancel(context.Background())
	return s
}

// Ticket prepares an entry.
func (s *Session[C]) Ticket(r driver.Request) driver.Ticket {
	return &Ticket[C]{session: s, request: r}
}

// KeepAlive has the server answer on every connection that holds. A request that is not answered in
// time goes on: giving the connection up would give up the lock. It counts from the call that has
// sent it. A connection that is silent while others answer is late alone: one that a router on its
// way has forgotten, or whose process of the server stands still, must not take the client's other
// locks with it.
func (s *Session[C]) KeepAlive(ctx context.Context) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	began := bootclock.Now()
	holds, err := s.holds()
	if err != nil {
		return 0, err
	}
	answered := make(chan struct{}, len(holds)) // has room for all: after the end of ctx the rest is not received
	for _, h := range holds {
		go func() { s.ping(h, began); answered <- struct{}{} }()
	}
	for n := 0; n < len(holds) && ctx.Err() == nil; n++ {
		select {
		case <-answered:
		case <-ctx.Done():
		}
	}
	return s.renewedSince(ctx, holds, began)
}

// holds are the connections that hold, by their tickets.
func (s *Session[C]) holds() (map[*Ticket[C]]*hold[C], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	holds := map[*Ticket[C]]*hold[C]{}
	for t := range s.tickets {
		if h := t.attempt.held(); h != nil && !t.left {
			holds[t] = h
		}
	}
	return holds, nil
}

// ping has the server answer on a connection, and notes it. A ping that is given up ends its
// connection, and the server gives the lock to the next. The holder has stopped trusting it by then:
// its time is counted from before, for as long as this one waits.
func (s *Session[C]) ping(h *hold[C], began bootclock.Instant) {
	within, cancel := context.WithTimeout(s.Done, s.Granted)
	defer cancel()
	broken := false
	err := h.use(within, false, func(ctx context.Context, c C) (err error) {
		broken, err = s.store.Ping(ctx, c)
		return err
	})
	switch {
	case broken: // its holder is told; the others are not concerned
		h.lost(err)
	case err == nil:
		s.mu.Lock()
		defer s.mu.Unlock()
		if h.renewed.Before(began) {
			h.renewed = began // before the request was sent; also if the call that has sent it has given up since
		}
	}
}

// renewedSince is the result of a KeepAlive. A hold that is new begins with renewed, and not with
// the moment in which we learn of it: this process may have been stopped since the server granted
// it, and the core does not trust it for longer.
func (s *Session[C]) renewedSince(ctx context.Context, holds map[*Ticket[C]]*hold[C], began bootclock.Instant) (time.Duration, error) {
	tally := keepalive.Tally{TTL: s.Granted, Late: map[string]time.Duration{}, ServerFailed: true}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, errClosed
	}
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

// Close releases everything, all at once: one connection that is silent must not use up the time for
// the others. What is not answered in time ends with its connection.
func (s *Session[C]) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	var all []*Ticket[C]
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
	s.finish() // and with it the pings, behind which a release may have waited for longer than ctx
	for _, t := range all {
		if h := t.hold(); h != nil {
			go h.drop()
		}
	}
	return err
}
