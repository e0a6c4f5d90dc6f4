package pushqueue

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync"

	"github.com/hasplock/hasp/driver"
)

// Session has the tickets of a client. A driver embeds it, adds KeepAlive and Close, and sets
// the exported fields before the first use.
type Session[E any] struct {
	Options driver.SessionOptions
	Done    context.Context // ended by End

	// Confirm has a grant that was pushed asked for before it counts.
	Confirm bool

	// Entering is called when the first request for a ticket is about to be sent, and Waiting
	// when an answer says that an entry waits. Both have the session's lock; nil is nothing.
	Entering func(*Ticket[E])
	Waiting  func()

	store  Store[E]
	finish context.CancelFunc

	// The lock is the driver's too, for what it keeps with the tickets.
	sync.Mutex
	closed  bool
	tickets map[string]*Ticket[E] // those that may have an entry, by ID
	where   *string               // see Renewed; shared by the tickets, who may be many
}

// New returns a session without tickets.
func New[E any](store Store[E], o driver.SessionOptions) *Session[E] {
	s := &Session[E]{Options: o, store: store, tickets: map[string]*Ticket[E]{}, where: new(string)}
	s.Done, s.finish = context.WithCancel(context.Background())
	return s
}

// Ticket prepares an entry.
func (s *Session[E]) Ticket(r driver.Request) driver.Ticket { return s.Prepare(r) }

// Prepare is Ticket, for drivers that keep something with it.
func (s *Session[E]) Prepare(r driver.Request) *Ticket[E] {
	return &Ticket[E]{session: s, Request: r}
}

// End ends the session on this side, and every Wait with it. It returns the tickets that may
// have an entry, but for those that are leaving: all at the first call, none afterwards.
func (s *Session[E]) End() (last []*Ticket[E]) {
	s.Lock()
	defer s.Unlock()
	for t := range s.Tickets() {
		last = append(last, t)
	}
	s.closed = true
	clear(s.tickets)
	s.finish()
	return last
}

// Closed reports whether the session was ended. The caller has the lock.
func (s *Session[E]) Closed() bool { return s.closed }

// Tickets are those that may have an entry and are not leaving. The caller has the lock.
func (s *Session[E]) Tickets() iter.Seq[*Ticket[E]] {
	return func(yield func(*Ticket[E]) bool) {
		for _, t := range s.tickets {
			if !t.left && !yield(t) {
				return
			}
		}
	}
}

// Has reports whether a ticket is one of Tickets. The caller has the lock.
func (s *Session[E]) Has(t *Ticket[E]) bool { return s.tickets[t.Request.ID] == t && !t.left }

// register notes that a request for the ticket is about to be sent, which must be known before
// it is: a renewal that begins meanwhile counts with the entry, and does not take it for one
// that nobody asked for.
func (s *Session[E]) register(t *Ticket[E]) (Mode, error) {
	s.Lock()
	defer s.Unlock()
	mode := First
	switch {
	case s.closed:
		return mode, ErrClosed
	case t.left, t.gone:
		return mode, fmt.Errorf("%w: it has left, or was lost", driver.ErrGone)
	case t.confirmed:
		mode = Ask
	case t.sent:
		mode = Again
	}
	if !t.sent {
		t.sent, t.where = true, s.where
		s.tickets[t.Request.ID] = t
		if s.Entering != nil {
			s.Entering(t)
		}
	}
	t.retry = 0 // what it asked for is done now
	return mode, nil
}

// dropLocked forgets a ticket that the store has no entry of.
func (s *Session[E]) dropLocked(t *Ticket[E]) {
	t.sent = false
	if s.tickets[t.Request.ID] == t {
		delete(s.tickets, t.Request.ID)
	}
}

func (s *Session[E]) goneLocked(t *Ticket[E]) {
	t.gone = true
	s.dropLocked(t)
	t.signal.Notify()
}

// Message handles what was pushed: "ID SEQ" is a grant, "ID -SEQ" an eviction.
func (s *Session[E]) Message(text string) {
	id, number, _ := strings.Cut(text, " ")
	seq, err := strconv.ParseInt(number, 10, 64)
	switch {
	case err != nil || seq == 0: // not ours; anybody can publish
	case seq > 0:
		s.Granted(id, uint64(seq))
	default:
		s.evicted(id, uint64(-seq))
	}
}

// Granted handles a grant. The number guards against one that was on its way to an earlier entry
// of the same ID: after a lost answer and an expiry, an ID can have a second entry. It is kept
// for a ticket that is not confirmed yet: a grant can overtake the answer that says "wait".
func (s *Session[E]) Granted(id string, seq uint64) {
	s.Lock()
	defer s.Unlock()
	if t := s.tickets[id]; t != nil {
		t.Grant(seq)
	}
}

func (s *Session[E]) evicted(id string, seq uint64) {
	s.Lock()
	t := s.tickets[id]
	mine := t != nil && !t.left && t.confirmed && t.seq == seq
	if mine {
		s.goneLocked(t)
	}
	s.Unlock()
	if mine {
		s.Options.Gone(id, fmt.Errorf("%w: evicted", driver.ErrGone))
	}
}

// Missing tells of entries that the store does not have, and that it had confirmed. Those that
// are leaving, or were lost before, are not told of.
func (s *Session[E]) Missing(tickets []*Ticket[E]) {
	var gone []string
	s.Lock()
	for _, t := range tickets {
		if s.Has(t) {
			s.goneLocked(t)
			gone = append(gone, t.Request.ID)
		}
	}
	s.Unlock()
	for _, id := range gone {
		s.Options.Gone(id, fmt.Errorf("%w: no such entry at the renewal", driver.ErrGone))
	}
}

// Dead tells that the store does not have the session any more, and returns the error for the
// call that found out.
func (s *Session[E]) Dead() error {
	err := fmt.Errorf("%w: the session has expired", driver.ErrGone)
	s.Options.Gone("", err)
	return err
}
