package pglock

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/bootclock"
)

// mostSettled is how many row holders one statement moves: each is a row or two written, and other
// statements wait for their names meanwhile.
const mostSettled = 500

// fewSettled is how many the statement may move that extends the session's row. With more of them
// that comes by itself first: what it takes must not depend on them.
const fewSettled = 100

// renewal has what the statements of one KeepAlive were answered.
type renewal struct {
	answered, alive bool
	entries, seqs   int64     // all of the session's, by the last answer, and those that a full disk has kept in rows
	reached         int       // how many row holders a statement has been answered for
	locked          []*ticket // those of them whose rows another transaction has locked
	slow            bool      // there was no time for the rest
	where           string
	there           map[string]string // names of the entries, by ID; nil if they are as many as we know of
}

// late are the row holders that were not moved.
func (r *renewal) late(rows []*ticket) []*ticket { return append(r.locked, rows[r.reached:]...) }

// KeepAlive extends the session's row, for any number of entries that live with it: one statement,
// on the session's connection, which also moves the row holders to the entries; more only if there
// are very many of those, once. Its answer counts the entries: so an entry that was removed is
// missed, and an orphan, which a request delayed by the network has made after its ticket left, is
// found and removed. Only when the count differs from what we know are the entries listed; a
// request under way looks like that, too.
//
// With the first answer the session has its time, and all that was moved by then. A client may take
// names faster than they are moved, and another program may have locked the row of one. So those
// that are not moved in half of the time that there is do not keep the others waiting: they are
// late, each by the time of its grant, and the next renewal begins with them. Rejected: all or
// none. Of 17,000 locks that were taken in a third of a TTL none was left.
func (s *session) KeepAlive(ctx context.Context) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	known, err := s.Known()
	if err != nil {
		return 0, err
	}
	began := bootclock.Now()
	rows := s.rows() // after Known: an entry that is confirmed in between is in rows, and not expected
	results := make(chan renewal, 1)
	err = s.conn.ask(ctx, func(ctx context.Context, on runner) error {
		var r renewal // of this goroutine, until it is done: the caller may have given up
		defer func() { results <- r }()
		err := s.extend(ctx, on, rows, began, &r)
		if err == nil && r.alive && !known.Except(r.late(rows)).Agrees(r.entries, uint64(r.seqs)) {
			r.there, err = s.list(ctx, on, rows)
		}
		return err
	})
	var r renewal
	select {
	case r = <-results:
	default: // nothing came in time
	}
	late := r.late(rows)
	switch {
	case noSchema(err):
		s.table.forget()
		return 0, s.Dead()
	case r.answered && !r.alive:
		return 0, s.Dead()
	case err != nil && (!r.answered || len(late) == 0):
		return 0, explain(ctx, err)
	case err == nil:
		if orphans := s.Renewed(known.Except(late), r.where, r.there); len(orphans) > 0 {
			go s.removeOrphans(orphans)
		}
	}
	if len(late) == 0 {
		return s.Options.TTL, nil
	}
	return 0, &driver.PartialRenewal{Granted: s.Options.TTL, Late: s.late(late, began), Slow: r.slow, Err: cmp.Or(explain(ctx, err), errNotMoved)}
}

var errNotMoved = errors.New("new locks are not with the session yet: the server had no time for all, or another transaction has locked their rows")

// extend sends the statements. It ends before ctx does: what was answered by then counts.
func (s *session) extend(ctx context.Context, on runner, rows []*ticket, began bootclock.Instant, r *renewal) error {
	left := s.Options.TTL / 3
	if by, bounded := ctx.Deadline(); bounded {
		left = time.Until(by)
	}
	enough := time.Now().Add(left / 2)
	ctx, cancel := context.WithTimeout(ctx, left-left/8)
	defer cancel()
	var kept, keptSeqs int64
	some := rows
	if len(rows) > fewSettled {
		some = nil
	}
	for {
		names, ids := named(some)
		var entries, seqs, inRows, rowSeqs int64
		var locked string
		err := one(ctx, on, s.table.naming.sql(`SELECT r.*, $1::pg_catalog.text, hasp_where()
			FROM hasp_renew(hasp_level($1::pg_catalog.text), $2::bigint, $3::pg_catalog.text::pg_catalog.text[], $4::pg_catalog.text::pg_catalog.text[]) r`),
			[]any{s.id, s.Options.TTL.Microseconds(), names, ids}, &r.alive, &entries, &seqs, &inRows, &rowSeqs, &locked, echo(s.id), &r.where)
		if err != nil {
			return err
		}
		kept, keptSeqs = kept+inRows, keptSeqs^rowSeqs
		r.answered, r.entries, r.seqs = true, entries+kept, seqs^keptSeqs
		r.reached += len(some)
		moved := some
		if locked != "" {
			moved = nil
			stay := strings.Fields(locked)
			for _, t := range some {
				if slices.Contains(stay, t.Request.ID) {
					r.locked = append(r.locked, t)
				} else {
					moved = append(moved, t)
				}
			}
		}
		s.settled(moved, inRows > 0, began) // if some were kept, the next renewal asks for all of them again
		if r.slow = r.reached < len(rows) && !time.Now().Before(enough); !r.alive || r.slow || r.reached == len(rows) {
			return nil
		}
		some = rows[r.reached:min(r.reached+mostSettled, len(rows))]
	}
}

// list lists the session's entries, and those of its row holders that a full disk has kept in
// their rows.
func (s *session) list(ctx context.Context, r runner, rows []*ticket) (there map[string]string, err error) {
	there = map[string]string{}
	names, _ := named(rows)
	return there, r.each(ctx, s.table.naming.sql(`SELECT e.id, e.name FROM hasp_entries e WHERE e.session OPERATOR(pg_catalog.=) $1::pg_catalog.text
		UNION ALL SELECT n.h_id, n.name FROM hasp_names n WHERE n.h_session OPERATOR(pg_catalog.=) $1::pg_catalog.text
			AND n.name OPERATOR(pg_catalog.=) ANY ($2::pg_catalog.text::pg_catalog.text[])`), []any{s.id, names}, anyNumber,
		func(scan func(...any) error) error {
			var id, name string
			err := scan(&id, &name)
			there[id] = name
			return err
		})
}

// removeOrphans runs beside the renewals, which it must not delay. What it does not finish the next
// renewal finds again.
func (s *session) removeOrphans(ids map[string]string) {
	ctx, cancel := context.WithTimeout(s.Done, s.Options.TTL/3)
	defer cancel()
	for id, name := range ids {
		if _, _, err := s.table.leave(ctx, leaveSlowly, name, s.id, id); err != nil {
			return
		}
	}
}
