package mysqllock

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
)

// session is a client's row in the table of sessions, and what the client knows of its
// entries. All of them live as long as that row is renewed.
//
// Trust is counted from the sending of the last good renewal. That is right because the
// server takes the moment that it counts from later than that; because whoever removes
// entries first puts expires back to 1970, under the lock of the row, so that a renewal
// comes before it and is seen, or after it and fails; and because nothing else shortens
// expires. What is entered later lives by the same row.
type session struct {
	table *table
	id    string
	opts  driver.SessionOptions

	renewal *line // for renewals alone

	done   context.Context // ended by Close
	finish context.CancelFunc

	ear       listener // used by one listener at a time
	listeners sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	listening bool
	server    uint64             // which run of which server was last seen to have our entries
	tickets   map[string]*ticket // those that may have an entry, by ID
}

// register notes that a request for the ticket is about to be sent.
func (s *session) register(t *ticket) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return errSessionClosed
	case t.left, t.gone:
		return fmt.Errorf("%w: it has left", driver.ErrGone)
	}
	t.sent = true
	s.tickets[t.request.ID] = t
	return nil
}

// forget drops a ticket that the store is known to have no entry of.
func (s *session) forget(t *ticket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked(t)
}

func (s *session) forgetLocked(t *ticket) {
	t.sent = false
	delete(s.tickets, t.request.ID)
}

// drop is forget, for a ticket that the store may have lost: it still asks when it is to leave.
func (s *session) drop(t *ticket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tickets, t.request.ID)
}

// goneLocked drops a ticket whose entry the store has lost.
func (s *session) goneLocked(t *ticket) {
	t.gone = true
	s.forgetLocked(t)
	t.bell.Notify()
}

// Close removes the session with all its entries. It may be called again after an error.
func (s *session) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.finish() // ends the listening, and every Wait
	err := s.table.bury(ctx, s.table.work, s.id)
	if missing(err) {
		err = nil // there is nothing left to remove
	}
	if err == nil {
		s.listeners.Wait()
		s.renewal.rest()
	}
	return err
}

// Ticket prepares an entry.
func (s *session) Ticket(r driver.Request) driver.Ticket {
	return &ticket{session: s, request: r}
}

// retry is when a waiter asks although it was told nothing. The listening misses nothing
// that the procedures do; this is for what people do to the tables by hand.
func (s *session) retry() time.Duration { return max(s.opts.TTL, time.Second) }
