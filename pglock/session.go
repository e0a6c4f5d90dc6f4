package pglock

import (
	"context"
	"crypto/rand"
	mathrand "math/rand/v2"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/pushqueue"
)

// session has a client's entries in the queues, and the row that they live with.
//
// Trust is counted from the sending of the last good renewal, for every entry alike. That
// is right because the row's expiry is set when the request arrives, which is later than
// its sending; because an entry lives as long as the row, whenever it was entered; because
// the row is deleted only by a client that finds it expired, under its lock; and because an entry
// that does not live with it yet, a row holder, lives for a TTL from its making, which no renewal has
// followed (rowholder.go).
type session struct {
	*pushqueue.Session[extra]

	table *table
	id    string
	conn  *sessionConn

	renewals int // how many have begun; the session's lock guards it
}

// ticket is the ticket of one entry.
type ticket = pushqueue.Ticket[extra]

var errSessionClosed = pushqueue.ErrClosed

func newSession(t *table, o driver.SessionOptions) *session {
	s := &session{table: t, id: strings.ToLower(rand.Text()[:16])} // 80 random bits
	s.Session = pushqueue.New[extra](s, o)
	s.conn = &sessionConn{to: t.links, heard: s.Message, restored: s.lookUp}
	if t.links.listens() {
		s.conn.channel = "hasp_s_" + s.id
	}
	return s
}

// lookUp has every waiter ask, because the connection has been down and what was notified meanwhile
// is lost. They do not all ask at once.
func (s *session) lookUp() {
	s.Lock()
	defer s.Unlock()
	for t := range s.Tickets() {
		if t.Waits() {
			t.AskAfter(time.Millisecond + mathrand.N(50*time.Millisecond))
		}
	}
}

// Close removes all entries and the session's row, in one transaction.
func (s *session) Close(ctx context.Context) error {
	s.End()
	err := s.table.ask(ctx, "SELECT hasp_finish(hasp_level($1::pg_catalog.text), $2::boolean)::pg_catalog.text", []any{s.id, s.table.opts.DurableRelease}, new(string))
	if noSchema(err) {
		return nil // the tables were dropped, and the entries with them
	}
	return err
}
