package pglock

import (
	"slices"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver/kit/bootclock"
	"github.com/hasplock/hasp/driver/kit/keepalive"
)

// A name without waiters has its holder in its own row (schema/2.sql): to lock is one update,
// and to unlock another, without a function of ours and without a write to an index. If the row is
// not as expected, the same statement goes on with the function that handles all cases.
//
// A row holder lives for a TTL, independently of its session, and so each renewal moves those that
// the session knows of to the entries, which live with the session. A request that was under way
// when the renewal began may have been too early for that, and not answered yet. So renewals are
// counted: an answer that comes when another has begun counts only after the holder was moved.

// extra is the driver's part of a ticket.
type extra struct {
	// The session's lock guards these.
	row   bool              // its entry is the row holder, or was it when we last looked
	sent  bootclock.Instant // before the request that gave the row holder its time
	waits bool              // the store has answered that its entry waits; it may hold by now
}

// inRow notes that the entry is the row holder, for the next renewal to move it. It reports false
// if a renewal has begun since the request was sent: that one may not have seen it, and our trust
// may outlast the holder's time. Then it is noted all the same: on a full disk it can be released
// only there, and one that has been moved is looked for in both places.
func (s *session) inRow(t *ticket, sent bootclock.Instant, renewals int) bool {
	s.Lock()
	defer s.Unlock()
	t.Extra.row, t.Extra.sent = true, sent
	return s.renewals == renewals
}

// mayBeInRow reports whether a request to leave should look into the row first.
func (s *session) mayBeInRow(t *ticket) bool {
	s.Lock()
	defer s.Unlock()
	return t.Extra.row
}

// rows begins a renewal: it counts it, and returns the row holders that are to be moved by it, first
// those whose own time ends first.
func (s *session) rows() []*ticket {
	s.Lock()
	defer s.Unlock()
	s.renewals++
	var rows []*ticket
	for t := range s.Tickets() {
		if t.Extra.row {
			rows = append(rows, t)
		}
	}
	slices.SortFunc(rows, func(a, b *ticket) int { return a.Extra.sent.Compare(b.Extra.sent) })
	return rows
}

// settled notes what a renewal that began at a moment has done with some of them. Those that it has
// kept in their rows have a TTL from then on; the others the server has moved, or does not have.
func (s *session) settled(rows []*ticket, kept bool, began bootclock.Instant) {
	s.Lock()
	defer s.Unlock()
	for _, t := range rows {
		t.Extra.row = kept
		if kept {
			t.Extra.sent = began
		}
	}
}

// late has how much is left, at a moment, of the TTL of row holders that were not moved.
func (s *session) late(rows []*ticket, at bootclock.Instant) map[string]time.Duration {
	s.Lock()
	defer s.Unlock()
	late := make(map[string]time.Duration, len(rows))
	for _, t := range rows {
		late[t.Request.ID] = keepalive.Left(s.Options.TTL, t.Extra.sent, at)
	}
	return late
}

// named takes tickets apart for a statement: arrays as text, which every library sends the same.
func named(rows []*ticket) (names, ids string) {
	n, i := make([]string, len(rows)), make([]string, len(rows))
	for k, t := range rows {
		n[k], i[k] = t.Request.Name, t.Request.ID
	}
	return textArray(n), textArray(i)
}

// textArray is an array as PostgreSQL writes it.
func textArray(elements []string) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, e := range elements {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('"')
		b.WriteString(arrayQuotes.Replace(e))
		b.WriteByte('"')
	}
	b.WriteByte('}')
	return b.String()
}

var arrayQuotes = strings.NewReplacer(`\`, `\\`, `"`, `\"`)
