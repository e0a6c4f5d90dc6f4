package pglock

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/hasplock/hasp/internal/pushqueue"
)

// A commit with NOTIFY has the server wake every connection of the database that listens, on any
// channel; each reads the notification, and all but one throw it away. So the cost of a hand-over grows
// with the connections that listen, and a session listens only while one of its entries waits.
//
// An entry that waits may be granted before the LISTEN stands, and that notification is lost. So
// an answer "wait" counts only if the same LISTEN has stood since before its request was sent: the
// name's lock orders this request and the release that grants, and a release behind it is
// notified to a connection that listens. Otherwise the session listens, and asks once more.

// listenFor is how long a session goes on to listen when nothing waits any more. A client that waits
// again and again so listens once.
const listenFor = 5 * time.Second

// askUnheard is after what time a waiter asks if the session could not listen: its connection is
// being set up. Those who wait already ask when it is.
const askUnheard = time.Second

// Enter makes the entry, or asks for it, and sees to it that a grant which follows is heard.
func (s *session) Enter(ctx context.Context, t *ticket, mode pushqueue.Mode) (pushqueue.Answer, error) {
	stood := s.hear.stands.Load()
	a, err := s.enter(ctx, t, mode)
	if err != nil || a.State != pushqueue.Waits || s.hears(t, stood) {
		return a, err
	}
	if s.listen(ctx) == nil {
		if later, err := s.Enter(ctx, t, pushqueue.Ask); err == nil {
			return later, nil
		}
	}
	// The first answer stands: there is an entry, and it waits. That we could not listen, or ask, must
	// not hide that.
	a.Retry = min(a.Retry, askUnheard+rand.N(askUnheard/4))
	return a, nil
}

// hears notes that the ticket's entry waits, and reports whether the LISTEN that stood when the request
// was sent does so still. The session's lock makes that one step, as quiet is: either quiet sees the
// ticket, or this sees that quiet has ended the LISTEN. So it is if the connection breaks: that ends the
// LISTEN before lookUp has all that wait ask.
func (s *session) hears(t *ticket, stood int64) bool {
	s.Lock()
	defer s.Unlock()
	t.Extra.waits = true
	s.waited = time.Now()
	return !s.table.links.listens() || stood != 0 && stood == s.hear.stands.Load()
}

// quiet reports whether nothing has waited for listenFor, and then counts the LISTEN as ended.
func (s *session) quiet() bool {
	s.Lock()
	defer s.Unlock()
	if time.Since(s.waited) < listenFor {
		return false
	}
	for t := range s.Tickets() {
		if t.Extra.waits && !t.Held() {
			return false
		}
	}
	s.hear.stands.Store(0)
	return true
}

// listen returns when a LISTEN stands, unless ctx ends first, or that takes too long. The LISTEN goes on
// then: a waiter that gives up must not break the connection on which a session renews.
func (s *session) listen(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askUnheard)
	defer cancel()
	for {
		l := sharedConn(s.conn, s.Options.TTL)
		err := l.submit(ctx, &request{ctx: l.done, answer: make(chan error, 1), do: func(ctx context.Context, r runner) error {
			return l.listen(ctx, r, &s.hear)
		}})
		if err == nil || ctx.Err() != nil || l == s.conn || l.done.Err() == nil {
			return err
		}
		// The other session was closed: there is another connection to share, or this session's.
	}
}
