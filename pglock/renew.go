package pglock

import (
	"context"
	"time"
)

// mostSettled is how many row holders one statement moves: each is a row or two written, and other
// statements wait for their names meanwhile.
const mostSettled = 1000

// KeepAlive extends the session's row, for any number of entries that live with it: one statement,
// on the session's connection, which also moves the row holders to the entries; more only if there
// are very many of those, once. Its answer counts the entries: so an entry that was removed is
// missed, and an orphan, which a request delayed by the network has made after its ticket left, is
// found and removed. Only when the count differs from what we know are the entries listed; a
// request under way looks like that, too.
func (s *session) KeepAlive(ctx context.Context) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	known, err := s.Known()
	if err != nil {
		return 0, err
	}
	// After Known: an entry that is confirmed in between is in rows, and not expected.
	rows := s.rows()
	var alive bool
	var entries, seqs, inRows, rowSeqs int64
	var where string
	there := map[string]string{} // names of the entries, by ID
	err = s.conn.ask(ctx, func(ctx context.Context, r runner) error {
		n := s.table.naming
		var err error
		alive, inRows, rowSeqs = true, 0, 0
		for rest := rows; err == nil && alive; {
			some := rest[:min(len(rest), mostSettled)]
			rest = rest[len(some):]
			names, ids := named(some)
			var kept, keptSeqs int64 // of these; entries are all of the session's
			err = one(ctx, r, n.sql(`SELECT r.*, $1::pg_catalog.text, hasp_where()
				FROM hasp_renew(hasp_level($1::pg_catalog.text), $2::bigint, $3::pg_catalog.text::pg_catalog.text[], $4::pg_catalog.text::pg_catalog.text[]) r`),
				[]any{s.id, s.Options.TTL.Microseconds(), names, ids}, &alive, &entries, &seqs, &kept, &keptSeqs, echo(s.id), &where)
			inRows, rowSeqs = inRows+kept, rowSeqs^keptSeqs
			if len(rest) == 0 {
				break
			}
		}
		if err != nil || !alive || known.Agrees(entries+inRows, uint64(seqs^rowSeqs)) {
			there = nil
			return err
		}
		return s.listTo(ctx, r, rows, there)
	})
	switch {
	case noSchema(err):
		s.table.forget()
		return 0, s.Dead()
	case err != nil:
		return 0, explain(ctx, err)
	case !alive:
		return 0, s.Dead()
	}
	if inRows == 0 { // else some are where they were, and the next renewal asks for all of them again
		s.settled(rows)
	}
	if orphans := s.Renewed(known, where, there); len(orphans) > 0 {
		go s.removeOrphans(orphans)
	}
	return s.Options.TTL, nil
}

// listTo lists the session's entries, and those of its row holders that a full disk has kept in
// their rows.
func (s *session) listTo(ctx context.Context, r runner, rows []*ticket, there map[string]string) error {
	names, _ := named(rows)
	return r.each(ctx, s.table.naming.sql(`SELECT e.id, e.name FROM hasp_entries e WHERE e.session OPERATOR(pg_catalog.=) $1::pg_catalog.text
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
