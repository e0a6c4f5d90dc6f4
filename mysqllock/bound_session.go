package mysqllock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
)

// boundSession is the locks of a client, each with its connection.
type boundSession struct {
	bound   *bound
	opts    driver.SessionOptions
	granted time.Duration

	done   context.Context // ended by Close
	finish context.CancelFunc

	mu      sync.Mutex
	closed  bool
	tickets map[*boundTicket]bool // those that have a connection
}

// pings is how many connections are asked at the same time.
const pings = 16

// KeepAlive asks every connection that holds a lock whether it is still there. The server
// keeps a lock for as long as it sees the connection, so that an answer proves the lock. A
// connection that does not answer is closed and its lock given up: that it may still be
// held there does no harm to us, and the server will see the end when it can.
//
// The pings also keep connections alive that a firewall, or the server's wait_timeout, would
// close for their silence.
func (s *boundSession) KeepAlive(ctx context.Context) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return 0, errSessionClosed
	}
	var held []*boundTicket
	for t := range s.tickets {
		held = append(held, t)
	}
	s.mu.Unlock()
	slots := make(chan struct{}, pings)
	var wg sync.WaitGroup
	for _, t := range held {
		slots <- struct{}{}
		wg.Go(func() {
			t.ping(ctx)
			<-slots
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	return s.granted, nil
}

// add notes a ticket that is about to have a connection.
func (s *boundSession) add(t *boundTicket) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errSessionClosed
	}
	s.tickets[t] = true
	return nil
}

func (s *boundSession) remove(t *boundTicket) {
	s.mu.Lock()
	delete(s.tickets, t)
	s.mu.Unlock()
}

// Close gives up every lock.
func (s *boundSession) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	var all []*boundTicket
	for t := range s.tickets {
		all = append(all, t)
	}
	s.mu.Unlock()
	s.finish() // ends every Wait
	for _, t := range all {
		if err := t.Leave(ctx); err != nil && !errors.Is(err, driver.ErrGone) {
			return err
		}
	}
	return nil
}

// Ticket prepares an acquisition.
func (s *boundSession) Ticket(r driver.Request) driver.Ticket {
	return &boundTicket{session: s, request: r, turn: make(chan struct{}, 1)}
}

// errLost tells of a lock whose connection has ended.
func errLost(why string) error { return fmt.Errorf("%w: %s", driver.ErrGone, why) }
