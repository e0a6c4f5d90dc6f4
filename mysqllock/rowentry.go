package mysqllock

import (
	"context"
	"database/sql"
	"strings"
	"time"
)

// rowEntries are the entries of a session that are in the rows of their names, as schema/2.sql
// says: an entry alone in its queue is made by one UPDATE, and removed by another. Another client
// that wants that name moves it to the table of entries, at any moment, and the entry's own client
// is not told: so what does not find it in the row looks there.
//
// No index leads from a session to these entries, since each lock would have to change it. A
// renewal asks for the names that its client knows. There is an entry that it does not know of:
// that of a request whose answer was lost, and which the server executes after its ticket has left.
// Such names are asked for as well, for as long as the request can be under way.
type rowEntries struct {
	session *session

	// Guarded by the session's lock.
	alone map[string]bool        // whether we had the name alone the last time
	late  map[string]lateRequest // by ID
}

type lateRequest struct {
	name  string
	since time.Time
}

const (
	// aloneMost bounds what is remembered. Forgetting has the next request take the longer way.
	aloneMost = 4096

	// lateFor is longer than a network keeps what was sent on a connection that has been closed,
	// and than a server is frozen before the sessions end. If a request came later still, its entry
	// would be found when another client wants the name, and be removed at our next renewal.
	lateFor  = time.Hour
	lateMost = 10000

	// namesMost is how many names are asked for at a time.
	namesMost = 1000
)

// wasAlone reports whether we had the name alone the last time, and so the UPDATE is worth an
// attempt; and whether we know it. A name that we do not know may be one that hundreds ask for at
// this moment. Their UPDATEs would wait for the lock of its row, with the releases behind them; the
// procedure lets one at a time get there.
func (r *rowEntries) wasAlone(name string) (alone, known bool) {
	r.session.Lock()
	defer r.session.Unlock()
	alone, known = r.alone[name]
	return alone, known
}

// note keeps where the entry of an answer is.
func (r *rowEntries) note(t *ticket, inRow bool) {
	r.session.Lock()
	defer r.session.Unlock()
	t.Extra.inRow = inRow
	if r.alone == nil || len(r.alone) >= aloneMost {
		r.alone = map[string]bool{}
	}
	r.alone[t.Request.Name] = inRow
}

// has reports whether the entry was made in the row of its name.
func (r *rowEntries) has(t *ticket) bool {
	r.session.Lock()
	defer r.session.Unlock()
	return t.Extra.inRow
}

// lost notes a request whose answer was lost.
func (r *rowEntries) lost(t *ticket) {
	r.session.Lock()
	defer r.session.Unlock()
	if len(r.late) >= lateMost {
		clear(r.late) // they are found as lateFor says
	}
	if r.late == nil {
		r.late = map[string]lateRequest{}
	}
	r.late[t.Request.ID] = lateRequest{t.Request.Name, time.Now()}
}

// enterRow makes the entry in the row of its name if there is no other. Seq is 0 if it was not
// made: because there is one, or no such row, or no session any more, or the server is read-only,
// which enter then says. A
// session that has expired, or whose row was removed, would get a lock that others do not see: no
// entry is there without its session. The row is locked by the statement that draws Seq.
func (s *session) enterRow(ctx context.Context, t *ticket) (seq uint64, err error) {
	r := t.Request
	text := s.table.named(`UPDATE {p}names SET seq = LAST_INSERT_ID(GREATEST(seq + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))),
		state = 1, h_id = ?, h_session = ?, h_units = ?, h_capacity = ?, h_since = ?, h_edition = 0, h_owner = ?, h_value = ?
		WHERE name = ? AND state = 0 AND {writable} AND EXISTS (SELECT 1 FROM {p}sessions WHERE id = ? AND expires > UTC_TIMESTAMP(6))`,
		r.ID, s.id, r.Units, r.Capacity, r.Since.UnixMicro(), r.Owner, r.Value, r.Name, s.id)
	n, last, err := change(ctx, s.table.work, text)
	if n > 0 {
		seq = last
	}
	switch {
	case err == nil && seq != 0:
		s.rows.note(t, true)
	case err != nil && number(err) == 0:
		s.rows.lost(t)
	}
	return seq, s.table.gone(err)
}

// leaveRow removes the entry if it is in the row of its name still. None waits behind it there: a
// waiter would have moved it first. That it is not there says nothing.
func (s *session) leaveRow(ctx context.Context, t *ticket) (there bool, err error) {
	if !s.rows.has(t) {
		return false, nil
	}
	n, err := run(ctx, s.table.work, s.table.named("UPDATE {p}names SET state = 0 WHERE name = ? AND state = 1 AND h_id = ? AND h_session = ?", t.Request.Name, t.Request.ID, s.id))
	switch {
	case isMissing(err):
		return false, nil
	case err == nil && n == 0: // others want the name
		s.rows.note(t, false)
	}
	return n > 0, err
}

// asked are the names at which this session may have entries in rows.
func (r *rowEntries) asked() []string {
	s := r.session
	s.Lock()
	defer s.Unlock()
	set := map[string]struct{}{}
	for t := range s.Tickets() {
		if t.Extra.inRow {
			set[t.Request.Name] = struct{}{}
		}
	}
	for id, l := range r.late {
		if time.Since(l.since) > lateFor {
			delete(r.late, id)
			continue
		}
		set[l.name] = struct{}{}
	}
	names := make([]string, 0, len(set))
	for name := range set {
		names = append(names, name)
	}
	return names
}

// each calls f with what a query says of those entries, some names at a time.
func (r *rowEntries) each(ctx context.Context, q querier, what string, f func(*sql.Rows) error) error {
	t := r.session.table
	for names := r.asked(); len(names) > 0; {
		some := names[:min(namesMost, len(names))]
		names = names[len(some):]
		list := make([]string, len(some))
		for i, name := range some {
			list[i] = literal(name)
		}
		text := t.named("SELECT "+what+" FROM {p}names WHERE state = 1 AND h_session = ? AND name IN (", r.session.id) + strings.Join(list, ",") + ")"
		if err := each(ctx, q, text, f); err != nil {
			return err
		}
	}
	return nil
}

// count returns how many there are, and the exclusive or of their Seqs.
func (r *rowEntries) count(ctx context.Context, q querier) (n int64, seqs uint64, err error) {
	err = r.each(ctx, q, "COUNT(*), COALESCE(BIT_XOR(seq), 0)", func(rows *sql.Rows) error {
		var some int64
		var folded uint64
		err := rows.Scan(&some, &folded)
		n, seqs = n+some, seqs^folded
		return err
	})
	return n, seqs, err
}

// names returns them by ID.
func (r *rowEntries) names(ctx context.Context, q querier) (map[string]string, error) {
	names := map[string]string{}
	err := r.each(ctx, q, "h_id, name", func(rows *sql.Rows) error {
		var id, name string
		err := rows.Scan(&id, &name)
		names[id] = name
		return err
	})
	return names, err
}
