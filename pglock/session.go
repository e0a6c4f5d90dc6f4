package pglock

import (
	"context"
	"crypto/rand"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/pushqueue"
)

// session has a client's entries in the queues, and the row that they live with.
//
// Trust is counted from the sending of the last good renewal, for every entry alike. That
// is right because the row's expiry is set when the request arrives, which is later than
// its sending; because an entry lives as long as the row, whenever it was entered; because
// the row is deleted only by a client that finds it expired, under its lock; and because an entry
// that does not live with it yet, a row holder, lives for a TTL from its making, which no renewal
// has followed (rowholder.go).
type session struct {
	*pushqueue.Session[extra]

	table   *table
	id      string
	conn    *sessionConn
	channel *channel // nil where no notification arrives

	renewals int // how many have begun; the session's lock guards it
}

// ticket is the ticket of one entry.
type ticket = pushqueue.Ticket[extra]

func newSession(t *table, o driver.SessionOptions) *session {
	s := &session{table: t, id: strings.ToLower(rand.Text()[:16])} // 80 random bits
	s.Session = pushqueue.New[extra](s, o)
	s.conn = &sessionConn{to: t.links, heard: func(string, string) {}, broke: func() {}}
	if d, ok := t.links.(*dialer); ok && d.listens() {
		s.channel = join(channelKey{d.login(), t.naming.schema, t.naming.prefix}, s)
		s.conn.heard, s.conn.broke = func(_, payload string) { s.channel.heard(payload) }, func() { s.channel.broke(s) }
	}
	return s
}

// channelName is "" if the session cannot be notified.
func (s *session) channelName() string {
	if s.channel == nil {
		return ""
	}
	return s.channel.name
}

// patience is how long a LISTEN may take.
func (s *session) patience() time.Duration { return min(dialTimeout, s.Options.TTL/3) }

// anyWaits reports whether an entry waits, as far as is known.
func (s *session) anyWaits() bool {
	s.Lock()
	defer s.Unlock()
	for t := range s.Tickets() {
		if t.Extra.waits && !t.Held() {
			return true
		}
	}
	return false
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
