package redislock

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/redisconn"
)

// session is a client's entries in the queues. The store knows nothing of it but the
// channel it listens to: each entry carries its own expiry, and KeepAlive extends all.
//
// Trust is counted from the sending of the last good KeepAlive, for every entry alike.
// That is right because a request that enters or renews gives the entry a whole TTL from
// its arrival, which is later than its sending; because KeepAlive covers each ticket that
// was registered before, and tickets are registered before their request is sent; and
// because nothing else ever moves an expiry, a grant least of all. A KeepAlive that has not
// reached every entry says what is left of those it has not: each ticket knows when the
// last request was sent that is known to have given it its TTL.
type session struct {
	queue *queue
	id    string
	opts  driver.SessionOptions
	ttl   string // in microseconds, as the scripts want it
	keep  string // how long a name is remembered that we use, in milliseconds

	done   context.Context // ended by Close
	finish context.CancelFunc

	mu      sync.Mutex
	closed  bool
	tickets map[string]*ticket // those that may have an entry, by ID
	left    []redisconn.Call   // what Close still has to remove
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
	if s.tickets[t.request.ID] == nil {
		t.renewed = time.Now() // before anything is sent
	}
	t.sent = true
	s.tickets[t.request.ID] = t
	return nil
}

// message handles what arrived on the session's channel: "ID SEQ" is a grant, "ID -SEQ"
// an eviction. Seq guards against a message that an earlier entry of the same ID left on
// its way: after a lost answer and an expiry, an ID can have a second entry.
func (s *session) message(text string) {
	id, number, _ := strings.Cut(text, " ")
	seq, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return // not ours; anybody can publish
	}
	s.mu.Lock()
	t := s.tickets[id]
	if t == nil {
		s.mu.Unlock()
		return
	}
	if seq > 0 {
		t.granted = uint64(seq)
		t.bell.Notify()
		s.mu.Unlock()
		return
	}
	mine := t.seq == uint64(-seq)
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

// Close removes all entries. It goes on where it failed when it is called again.
func (s *session) Close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		for id, t := range s.tickets {
			s.left = append(s.left, s.queue.leaveCall(t.key, id))
		}
		clear(s.tickets)
		s.finish() // ends the listening, and every Wait
	}
	left := s.left
	s.mu.Unlock()
	if len(left) == 0 {
		return ctx.Err()
	}
	var failed []redisconn.Call
	var err error
	for i, r := range s.queue.conn.EvalAll(ctx, leaveScript, left) {
		if r.Err != nil && redisconn.Answered(r.Err) == "" {
			failed, err = append(failed, left[i]), r.Err
		}
	}
	s.mu.Lock()
	s.left = failed
	s.mu.Unlock()
	return err
}

// Ticket prepares an entry.
func (s *session) Ticket(r driver.Request) driver.Ticket {
	return &ticket{session: s, request: r, key: s.queue.key(r.Name)}
}

// micros writes a duration as the scripts want it.
func micros(d time.Duration) string { return strconv.FormatInt(d.Microseconds(), 10) }

// lookUp renews what waits, which tells what holds by now. If it fails, the next KeepAlive
// does it. In a new session nothing waits, and nothing is sent.
func (s *session) lookUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.TTL/2)
	defer cancel()
	_, _ = s.renew(ctx, func(t *ticket) bool { return !t.held })
}
