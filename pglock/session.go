package pglock

import (
	"context"
	"fmt"
	"sync"

	"github.com/hasplock/hasp/driver"
)

// session is a client's entries in the queues, and the row that they live with.
//
// Trust is counted from the sending of the last good renewal, for every entry alike. That
// is right because the row's expiry is set when the request arrives, which is later than
// its sending; because an entry lives as long as the row, whenever it was entered; and
// because the row dies only by whoever finds it expired, under its lock.
type session struct {
	table *table
	id    string
	opts  driver.SessionOptions
	line  *line

	done   context.Context // ended by Close
	finish context.CancelFunc

	mu      sync.Mutex
	closed  bool
	tickets map[string]*ticket // those that may have an entry, by ID
	leaving map[string]*ticket // those whose Leave has not been answered

	// where is the server, and its timeline, that has answered last on the session's own
	// connection; "" where that is not to be learnt. See ticket.missing.
	where string
}

var errSessionClosed = fmt.Errorf("%w: the session is closed", driver.ErrGone)

// register notes that a request for the ticket is about to be sent.
func (s *session) register(t *ticket) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errSessionClosed
	}
	if t.left {
		return fmt.Errorf("%w: it has left", driver.ErrGone)
	}
	s.tickets[t.request.ID] = t
	return nil
}

// message handles what arrived on the session's channel: "ID SEQ" is a grant, "ID -SEQ" an
// eviction. Seq guards against a message that an earlier entry of the same ID left on its
// way: after a lost answer and an expiry, an ID can have a second entry.
func (s *session) message(text string) {
	var id string
	var seq int64
	if _, err := fmt.Sscan(text, &id, &seq); err != nil {
		return // not ours; anybody can notify
	}
	s.mu.Lock()
	t := s.tickets[id]
	if t == nil {
		s.mu.Unlock()
		return
	}
	if seq > 0 {
		t.granted = seq
		t.bell.Notify()
		s.mu.Unlock()
		return
	}
	mine := t.seq == -seq
	if mine {
		s.goneLocked(t)
	}
	s.mu.Unlock()
	if mine {
		s.opts.Gone(id, fmt.Errorf("%w: evicted", driver.ErrGone))
	}
}

// goneLocked drops a ticket whose entry the store does not have.
func (s *session) goneLocked(t *ticket) {
	t.gone, t.sent = true, false
	delete(s.tickets, t.request.ID)
	t.bell.Notify()
}

// lookUp has every waiter ask, because the connection has been down and with it whatever
// was notified meanwhile.
func (s *session) lookUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tickets {
		if t.confirmed && !t.held {
			t.missed = true
			t.bell.Notify()
		}
	}
}

// dead tells the core that the session's row is gone, and returns the error for the call
// that found out.
func (s *session) dead() error {
	err := fmt.Errorf("%w: the session has expired", driver.ErrGone)
	s.opts.Gone("", err)
	return err
}

// Close removes all entries and the session's row, in one transaction.
func (s *session) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	for _, t := range s.tickets {
		t.bell.Notify()
	}
	clear(s.tickets)
	s.mu.Unlock()
	s.finish() // ends the line, and every Wait
	err := s.table.ask(ctx, "SELECT hasp_finish(hasp_level($1::pg_catalog.text))::pg_catalog.text", []any{s.id}, new(string))
	if noSchema(err) {
		return nil // whoever dropped the tables has removed the entries as well
	}
	return err
}

// Ticket prepares an entry.
func (s *session) Ticket(r driver.Request) driver.Ticket {
	return &ticket{session: s, request: r}
}
