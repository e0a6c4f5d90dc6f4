package mysqllock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
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
	tickets map[*boundTicket]uint64 // those that have a connection: in which round it answered
	round   uint64                  // of pings
	began   time.Time               // the round that is not finished; zero: there is none
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
// With a thousand locks on a busy machine a call's time may be over before all have
// answered. It fails, but nothing is given up for that, and the next call goes on where it
// has stopped: a round may take several calls, and is worth what is left of it, counted from
// its own beginning. A ping outlives the call that sent it: cutting it short would close its
// connection, and the lock with it.
func (s *boundSession) KeepAlive(ctx context.Context) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	round, age, next, err := s.resume()
	if err != nil {
		return 0, err
	}
	asking := min(pings, len(next))
	ended := make(chan error, asking) // has room for all: after the first error the rest is not received
	for range asking {
		go func() { ended <- s.ask(ctx, round, next) }()
	}
	for range asking {
		select {
		case err := <-ended:
			if err != nil {
				return 0, err
			}
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	s.mu.Lock()
	s.began = time.Time{}
	s.mu.Unlock()
	s.bound.tidy(ctx)
	return s.granted - age, nil
}

// resume begins a round of pings, or goes on with the one that was not finished, and returns
// its age and the tickets that have not answered in it. A round that would leave little time is
// begun anew.
//
// The age counts what the machine has slept, which only the wall clock knows of.
func (s *boundSession) resume() (round uint64, age time.Duration, next chan *boundTicket, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, 0, nil, errSessionClosed
	}
	now := time.Now()
	age = max(now.Sub(s.began), now.Round(0).Sub(s.began.Round(0)))
	if s.began.IsZero() || age > s.granted/2 {
		s.began, age = now, 0
		s.round++
	}
	next = make(chan *boundTicket, len(s.tickets))
	for t, answered := range s.tickets {
		if answered != s.round {
			next <- t
		}
	}
	close(next)
	return s.round, age, next, nil
}

// ask pings one connection after the other.
func (s *boundSession) ask(ctx context.Context, round uint64, next <-chan *boundTicket) error {
	for t := range next {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case s.done.Err() != nil:
			return errSessionClosed
		}
		if err := t.ping(round); err != nil {
			return err
		}
	}
	return nil
}

// answered reports whether a ticket's connection has answered in this round; note says so.
func (s *boundSession) answered(t *boundTicket, round uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tickets[t] == round
}

func (s *boundSession) note(t *boundTicket, round uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there := s.tickets[t]; there {
		s.tickets[t] = round
	}
}

// add notes a ticket that is about to have a connection.
func (s *boundSession) add(t *boundTicket) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errSessionClosed
	}
	s.tickets[t] += 0 // it may be there already
	return nil
}

func (s *boundSession) remove(t *boundTicket) {
	s.mu.Lock()
	delete(s.tickets, t)
	s.mu.Unlock()
}

// Close gives up every lock, all at once: one connection that is silent must not use up the time for the others. What is not
// answered in time ends with its connection.
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
