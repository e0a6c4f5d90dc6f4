package mysqllock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/keepalive"
)

// boundSession has the locks of a client, each with its connection.
type boundSession struct {
	bound   *bound
	opts    driver.SessionOptions
	granted time.Duration

	done   context.Context // ended by Close
	finish context.CancelFunc

	mu      sync.Mutex
	closed  bool
	tickets map[*boundTicket]time.Time // those that have a connection: when what it has answered last was sent
	renewed time.Time                  // what the core counts its trust from: before Open, or before the last renewal that has reached some
}

// pings is how many connections are asked at the same time.
const pings = 64

// KeepAlive asks every connection that holds a lock whether it is still there. The server
// keeps a lock for as long as it sees the connection, so that an answer proves the lock. A
// connection that does not answer is closed and its lock given up: that the server may still keep
// it does no harm to us, and the server sees the end when it can.
//
// The pings also keep connections alive that a firewall, or the server's wait_timeout, would
// close for their silence.
//
// A call's time may be over before all have answered: with a thousand locks on a busy machine, or
// since one connection is silent. Those that have answered are renewed then, and each of the others
// keeps what is left of its time; the next call begins with the oldest. A ping outlives the call
// that sent it: cutting it short would close its connection, and the lock with it.
func (s *boundSession) KeepAlive(ctx context.Context) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	began := time.Now()
	held, err := s.held()
	if err != nil {
		return 0, err
	}
	next := make(chan *boundTicket, len(held))
	for _, t := range held {
		next <- t
	}
	close(next)
	asking := min(pings, len(held))
	ended := make(chan struct{}, asking) // has room for all: after the end of the time the rest is not received
	for range asking {
		go func() { s.ask(ctx, began, next); ended <- struct{}{} }()
	}
	for range asking {
		select {
		case <-ended:
		case <-ctx.Done():
		}
	}
	granted, err := s.answer(ctx, began, held)
	if err == nil {
		s.bound.tidy(ctx)
	}
	return granted, err
}

// held returns the tickets that hold a lock, those first whose last answer is the oldest.
func (s *boundSession) held() (held []*boundTicket, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errSessionClosed
	}
	for t := range s.tickets {
		if v, over := t.state(); over == nil && v.Held {
			held = append(held, t)
		}
	}
	slices.SortFunc(held, func(a, b *boundTicket) int { return s.tickets[a].Compare(s.tickets[b]) })
	return held, nil
}

// answer is the result of a KeepAlive that began with these. Those that a ping of this call did not
// reach are late; one that was answered meanwhile by a ping of an earlier call has more time left.
//
// ServerFailed: the next call may wait for a silent connection again. If the answer were the least
// that any has left, the trust in all others would end with its trust.
func (s *boundSession) answer(ctx context.Context, began time.Time, held []*boundTicket) (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, errSessionClosed
	}
	tally := keepalive.Tally{TTL: s.granted, Late: map[string]time.Duration{}, ServerFailed: true}
	for _, t := range held {
		v, over := t.state()
		sent, there := s.tickets[t]
		if over != nil || !v.Held || !there {
			continue // released meanwhile, or lost, which was told
		}
		tally.All++
		if sent.Before(began) {
			tally.Late[t.request.ID] = keepalive.Left(s.granted, sent, began)
		}
	}
	granted, err := tally.Answer(ctx)
	if err == nil || errors.As(err, new(*driver.PartialRenewal)) {
		s.renewed = began
	}
	return granted, err
}

// ask pings one connection after the other.
func (s *boundSession) ask(ctx context.Context, began time.Time, next <-chan *boundTicket) {
	for t := range next {
		if ctx.Err() != nil || s.done.Err() != nil {
			return
		}
		t.ping(began)
	}
}

// answeredSince reports whether what a ticket's connection has answered last was sent since then;
// note says so.
func (s *boundSession) answeredSince(t *boundTicket, began time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.tickets[t].Before(began)
}

func (s *boundSession) note(t *boundTicket, sent time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there := s.tickets[t]; there {
		s.tickets[t] = sent
	}
}

// holds notes that a ticket's lock was granted. It is as old as the core's trust in it, and not
// new: the process may have been stopped since the answer came.
func (s *boundSession) holds(t *boundTicket) {
	s.mu.Lock()
	renewed := s.renewed
	s.mu.Unlock()
	s.note(t, renewed)
}

// add notes a ticket that is about to have a connection.
func (s *boundSession) add(t *boundTicket) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errSessionClosed
	}
	if _, there := s.tickets[t]; !there {
		s.tickets[t] = s.renewed
	}
	return nil
}

func (s *boundSession) remove(t *boundTicket) {
	s.mu.Lock()
	delete(s.tickets, t)
	s.mu.Unlock()
}

// Close gives up every lock, all at once: one connection that is silent must not use up the time
// for the others. What is not answered in time ends with its connection.
func (s *boundSession) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	var all []*boundTicket
	for t := range s.tickets {
		all = append(all, t)
	}
	s.mu.Unlock()
	s.finish() // ends every Wait
	left := make(chan error, len(all))
	for _, t := range all {
		go func() {
			err := t.Leave(ctx)
			if err != nil && !errors.Is(err, driver.ErrGone) {
				go t.drop()
			}
			left <- err
		}()
	}
	var err error
	for range all {
		if e := <-left; e != nil && !errors.Is(e, driver.ErrGone) {
			err = e
		}
	}
	return err
}

// Ticket prepares an acquisition.
func (s *boundSession) Ticket(r driver.Request) driver.Ticket {
	return &boundTicket{session: s, request: r, turn: make(chan struct{}, 1)}
}

// errLost tells of a lock whose connection has ended.
func errLost(why string) error { return fmt.Errorf("%w: %s", driver.ErrGone, why) }
