package pglock

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/pushqueue"
)

// A name without waiters has its holder in its own row (schema/1.sql): to lock is one update,
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
	row   bool // its entry is the row holder, or was it when we last looked
	waits bool // the store has answered that its entry waits; it may hold by now
}

// mostInRow is how many bytes of a request go into a name's row. With more the next version of the
// row might not fit on its page.
const mostInRow = 1000

// enterSQL tries the row first. A row that is waited for is not waited for here: the update sees
// that it is queued, and leaves it alone. The names of operators are written out because a pool of
// the user's may have any search_path.
//
// Both this and leaveSQL take the name's turn before the row (hasp_first), as all do that wait for
// it: an update that has waited for the row and finds it changed keeps its lock, and would wait
// with that for the turn of one that waits for the row.
//
// A level above READ COMMITTED, and commits that do not wait for the disk, are the function's
// business: it complains about the first and corrects the second.
const enterSQL = `WITH fast AS (
		UPDATE hasp_names n SET seq = greatest(n.seq OPERATOR(pg_catalog.+) 1::bigint, t.now), used = greatest(n.used, t.now OPERATOR(pg_catalog./) 3600000000::bigint),
			h_id = $4::pg_catalog.text, h_seq = greatest(n.seq OPERATOR(pg_catalog.+) 1::bigint, t.now), h_until = t.now OPERATOR(pg_catalog.+) $11::bigint,
			h_session = $5::pg_catalog.text, h_units = $6::bigint, h_capacity = $7::bigint, h_owner = $8::pg_catalog.text, h_since = $9::bigint, h_value = $10::pg_catalog.bytea
		FROM (SELECT hasp_now() AS now FROM hasp_sessions s WHERE s.id OPERATOR(pg_catalog.=) $5::pg_catalog.text AND s.expires OPERATOR(pg_catalog.>) hasp_now() AND hasp_first($3::pg_catalog.text)) t
		WHERE n.name OPERATOR(pg_catalog.=) $3::pg_catalog.text AND n.h_id OPERATOR(pg_catalog.=) ''::pg_catalog.text AND NOT n.queued AND n.watched OPERATOR(pg_catalog.<) t.now
			AND pg_catalog.current_setting('transaction_isolation'::pg_catalog.text) OPERATOR(pg_catalog.=) 'read committed'::pg_catalog.text
			AND pg_catalog.current_setting('synchronous_commit'::pg_catalog.text) OPERATOR(pg_catalog.<>) 'off'::pg_catalog.text
		RETURNING n.h_seq)
	SELECT 'row'::pg_catalog.text, f.h_seq, 0::bigint, 0::bigint, ''::pg_catalog.text, $4::pg_catalog.text FROM fast f
	UNION ALL ` + enterSlowly + ` WHERE NOT EXISTS (SELECT FROM fast)`

const enterSlowly = `SELECT e.*, $4::pg_catalog.text FROM hasp_enter($1::pg_catalog.text, $2::boolean, hasp_turn($3::pg_catalog.text, 16),
		$4::pg_catalog.text, $5::pg_catalog.text, $6::bigint, $7::bigint, $8::pg_catalog.text, $9::bigint, $10::pg_catalog.bytea, $11::bigint) e`

// Enter makes the entry, or asks for it.
func (s *session) Enter(ctx context.Context, t *ticket, mode pushqueue.Mode) (pushqueue.Answer, error) {
	s.Lock()
	renewals := s.renewals
	s.Unlock()
	r := t.Request
	stmt, ttl := enterSlowly, int64(0)
	if mode == pushqueue.First && len(r.Owner)+len(r.Value) <= mostInRow {
		stmt, ttl = enterSQL, s.Options.TTL.Microseconds()
	}
	var a answer
	err := s.table.ask(ctx, stmt, []any{modes[mode], r.NoWait, r.Name, r.ID, s.id, r.Units, r.Capacity, r.Owner, r.Since.UnixMicro(), present(r.Value), ttl},
		&a.state, &a.seq, &a.retry, &a.ahead, &a.holder, echo(r.ID))
	switch {
	case noSchema(err):
		return pushqueue.Answer{State: pushqueue.Dead}, nil
	case err != nil:
		return pushqueue.Answer{}, err
	case a.state == "other":
		return pushqueue.Answer{}, &driver.MismatchError{Name: r.Name, Want: r.Capacity, Found: a.seq}
	case a.state == "row" && !s.inRow(t, renewals):
		return s.move(ctx, t)
	case a.state == "wait" && s.channel != nil:
		s.channel.waits(s, t)
	}
	return s.toAnswer(a), nil
}

// move has a row holder moved to the entries. If that is refused (the disk is full) the holder is
// there all the same. A refusal would tell the caller that it has nothing, and nothing would be
// released. After an error that leaves it open the core asks again, and releases if that fails as
// well. If we die meanwhile, it ends by its own time.
func (s *session) move(ctx context.Context, t *ticket) (pushqueue.Answer, error) {
	a, err := s.Enter(ctx, t, pushqueue.Ask)
	if errors.Is(err, driver.ErrRefused) {
		err = fmt.Errorf("the lock was taken, and cannot be kept yet: %v", err)
	}
	return a, err
}

// inRow notes that the entry is the row holder, for the next renewal to move it. It reports false
// if a renewal has begun since the request was sent: that one may not have seen it, and our trust
// may outlast the holder's time. Then it is noted all the same: on a full disk it can be released
// only there, and one that has been moved is looked for in both places.
func (s *session) inRow(t *ticket, renewals int) bool {
	s.Lock()
	defer s.Unlock()
	t.Extra.row = true
	return s.renewals == renewals
}

// mayBeInRow reports whether a request to leave should look into the row first.
func (s *session) mayBeInRow(t *ticket) bool {
	s.Lock()
	defer s.Unlock()
	return t.Extra.row
}

// rows begins a renewal: it counts it, and returns the row holders that are to be moved by it.
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
	return rows
}

// settled notes that the server has moved them, or does not have them.
func (s *session) settled(rows []*ticket) {
	s.Lock()
	defer s.Unlock()
	for _, t := range rows {
		t.Extra.row = false
	}
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

// leaveSQL tries the row first, and else goes on as any Leave. Its commit does not wait for the
// disk, unless it is to (hasp_lazily).
func leaveSQL(durable bool) string {
	lazily := "pg_catalog.set_config('synchronous_commit'::pg_catalog.text, 'off'::pg_catalog.text, true)"
	if durable {
		lazily = "hasp_lazily(true)"
	}
	return `WITH fast AS (
		UPDATE hasp_names n SET h_id = ''::pg_catalog.text, h_session = ''::pg_catalog.text, h_owner = ''::pg_catalog.text, h_value = ''::pg_catalog.bytea
		WHERE n.name OPERATOR(pg_catalog.=) $1::pg_catalog.text AND n.h_id OPERATOR(pg_catalog.=) $3::pg_catalog.text
			AND n.h_session OPERATOR(pg_catalog.=) $2::pg_catalog.text AND n.watched OPERATOR(pg_catalog.<) hasp_now() AND hasp_first($1::pg_catalog.text)
		RETURNING ` + lazily + `)
	SELECT true, ''::pg_catalog.text, $3::pg_catalog.text FROM fast
	UNION ALL ` + leaveSlowly + ` WHERE NOT EXISTS (SELECT FROM fast)`
}
