package pushqueue

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Session has the tickets of a client. A driver embeds it, adds KeepAlive and Close, and sets
// the exported fields before the first use.
type Session[E any] struct {
	Options driver.SessionOptions
	Done    context.Context // ended by End

	// Confirm makes a ticket ask the store before a pushed grant counts.
	Confirm bool

	// Entering is called when the first request for a ticket is about to be sent, and Waiting
	// when an answer says that an entry waits. Both have the session's lock; nil is nothing.
	Entering func(*Ticket[E])
	Waiting  func()

	store  Store[E]
	finish context.CancelFunc

	// The driver uses the lock, too, for its part of the tickets.
	sync.Mutex
	closed  bool
	tickets map[string]*Ticket[E] // those that may have an entry, by ID
	where   *string               // see Renewed; a pointer, because there may be many tickets
}

// New returns a session without tickets.
func New[E any](store Store[E], o driver.SessionOptions) *Session[E] {
	s := &Session[E]{Options: o, store: store, tickets: map[string]*Ticket[E]{}, where: new(string)}
	s.Done, s.finish = context.WithCancel(context.Background())
	return s
}

// Ticket prepares an entry.
func (s *Session[E]) Ticket(r driver.Request) driver.Ticket { return s.Prepare(r) }

// Prepare is Ticket for drivers that have a part of it.
func (s *Session[E]) Prepare(r driver.Request) *Ticket[E] {
	return &Ticket[E]{session: s, Request: r}
}

// End ends the session on this side, and every Wait with it. The first call returns the tickets
// that may have an entry; further calls return none.
//
// Those that are leaving are among them: a Leave without an answer may never have been sent, and the
// core gives up the one that is under way when the session ends. A second request to leave, by the
// ID, finds the entry or does nothing.
func (s *Session[E]) End() (last []*Ticket[E]) {
	s.Lock()
	defer s.Unlock()
	for _, t := range s.tickets {
		last = append(last, t)
	}
	s.closed = true
	for _, t := range s.tickets {
		t.signal.Notify()
	}
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

// register notes that a request for the ticket is about to be sent. It comes before the request:
// a renewal that begins meanwhile must expect the entry, and must not take it for an orphan.
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
	t.retry = 0 // this request is the retry
	return mode, nil
}

// dropLocked removes a ticket that has no entry in the store.
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

// Message handles a pushed message: "ID SEQ" is a grant, "ID -SEQ" an eviction.
func (s *Session[E]) Message(text string) {
	id, number, _ := strings.Cut(text, " ")
	seq, err := strconv.ParseInt(number, 10, 64)
	switch {
	case err != nil || seq == 0: // not ours; any client can publish
	case seq > 0:
		s.Granted(id, uint64(seq))
	default:
		s.evicted(id, uint64(-seq))
	}
}

// Granted handles a grant. The Seq guards against a late grant of an earlier entry with the same ID:
// after a lost answer and an expiry, an ID can have a second entry, with a later Seq. A store may also
// give an entry a later Seq when it grants it. An unconfirmed ticket keeps the Seq: a grant can
// overtake the answer that says "wait".
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

// Missing reports entries to the core that the store had confirmed and does not have any more. It
// leaves out tickets that are leaving, or were lost before.
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

// Dead reports to the core that the store does not have the session any more, and returns the
// error for the call that has found that.
func (s *Session[E]) Dead() error {
	err := fmt.Errorf("%w: the session has expired", driver.ErrGone)
	s.Options.Gone("", err)
	return err
}

// Ended is ctx.Err, also in the moment before ctx's own timer fires: net's connections have the same
// deadline, and may be the first to notice it. What failed then has failed because of ctx.
func Ended(ctx context.Context) error {
	if by, bounded := ctx.Deadline(); bounded && !time.Now().Before(by) && ctx.Err() == nil {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}
