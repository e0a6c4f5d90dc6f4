package pglock

import (
	"context"
	"fmt"
	"time"

	"github.com/hasplock/hasp/driver"
)

// KeepAlive extends the session's row, whatever number of entries lives with it: one
// statement, on the session's own connection. Its answer counts the entries, by which one
// that somebody removed is missed, and one that a request delayed by the network has made
// after its ticket left is found and removed. Only when the count is not what we know are
// the entries listed; a request under way looks like that, too.
func (s *session) KeepAlive(ctx context.Context) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	known, err := s.known()
	if err != nil {
		return 0, err
	}
	var alive bool
	var entries, places int64
	var where string
	there := map[string]string{} // names of the entries, by ID
	err = s.line.ask(ctx, func(ctx context.Context, r runner) error {
		n := s.table.naming
		err := one(ctx, r, n.sql("SELECT r.*, $1::pg_catalog.text, hasp_where() FROM hasp_renew(hasp_level($1::pg_catalog.text), $2::bigint) r"),
			[]any{s.id, s.opts.TTL.Microseconds()}, &alive, &entries, &places, echo(s.id), &where)
		if err != nil || !alive || entries == int64(len(known.confirmed)) && places == known.places {
			there = nil
			return err
		}
		return r.each(ctx, n.sql("SELECT e.id, e.name FROM hasp_entries e WHERE e.session OPERATOR(pg_catalog.=) $1::pg_catalog.text"), []any{s.id}, anyNumber,
			func(scan func(...any) error) error {
				var id, name string
				err := scan(&id, &name)
				there[id] = name
				return err
			})
	})
	switch {
	case noSchema(err):
		s.table.forget()
		return 0, s.dead()
	case err != nil:
		return 0, explain(ctx, err)
	case !alive:
		return 0, s.dead()
	}
	s.confirm(known, where, there)
	if there != nil {
		s.compare(known, there)
	}
	return s.opts.TTL, nil
}

// confirm notes that a server has the entries that a renewal has seen there.
func (s *session) confirm(k knowledge, where string, there map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.where == where {
		return // as nearly always: the entries may be many
	}
	s.where = where
	for _, t := range k.confirmed {
		if _, ok := there[t.request.ID]; there == nil || ok {
			t.where = where
		}
	}
}

// knowledge is what was known of the entries when a renewal was sent.
type knowledge struct {
	confirmed []*ticket
	places    int64           // the xor of their seqs
	ids       map[string]bool // of all that may be there
}

func (s *session) known() (knowledge, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return knowledge{}, errSessionClosed
	}
	k := knowledge{ids: make(map[string]bool, len(s.tickets)+len(s.leaving))}
	for id, t := range s.tickets {
		k.ids[id] = true
		if t.confirmed {
			k.confirmed = append(k.confirmed, t)
			k.places ^= t.seq
		}
	}
	for id := range s.leaving {
		k.ids[id] = true
	}
	return k, nil
}

// compare tells of the entries that are missing, and removes those nobody asked for. An ID
// that came up since the renewal was sent, or is leaving, is neither.
func (s *session) compare(k knowledge, there map[string]string) {
	var gone []string
	s.mu.Lock()
	for _, t := range k.confirmed {
		if _, ok := there[t.request.ID]; !ok && !t.left && !t.gone {
			s.goneLocked(t)
			gone = append(gone, t.request.ID)
		}
	}
	for id := range there {
		if k.ids[id] || s.tickets[id] != nil || s.leaving[id] != nil {
			delete(there, id)
		}
	}
	s.mu.Unlock()
	for _, id := range gone {
		s.opts.Gone(id, fmt.Errorf("%w: no such entry at the renewal", driver.ErrGone))
	}
	if len(there) > 0 {
		go s.removeStray(there)
	}
}

// removeStray runs beside the renewals, which it must not delay. What it does not get done
// the next renewal finds again.
func (s *session) removeStray(ids map[string]string) {
	ctx, cancel := context.WithTimeout(s.done, s.opts.TTL/3)
	defer cancel()
	for id, name := range ids {
		if _, _, err := s.table.leave(ctx, name, s.id, id); err != nil {
			return
		}
	}
}
