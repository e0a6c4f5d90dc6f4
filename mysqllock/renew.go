package mysqllock

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/hasplock/hasp/driver"
)

// sum says which entries a session has, without listing them.
type sum struct {
	count int64
	seqs  uint64 // folded by exclusive or
}

// KeepAlive renews the session on a connection of its own. The answer also tells whether the
// store has those entries that we know of and no others: entries are removed by operators
// too, and a request to enter can arrive after its ticket left.
func (s *session) KeepAlive(ctx context.Context) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return 0, errSessionClosed
	}
	var there, stale, untidy bool
	var has sum
	var server uint64
	err := s.renewal.do(ctx, func(c *sql.Conn) error {
		text := s.table.named("CALL {p}renew_3(?, ?)", s.id, s.opts.TTL.Microseconds())
		err := row(ctx, c, text, &there, &has.count, &has.seqs, &stale, &untidy, &server)
		if err != nil || !there {
			return err
		}
		// What follows may fail without harm: the next renewal finds the same.
		if !s.agrees(has, server) {
			_ = s.compare(ctx, c, server)
		}
		if stale {
			_ = s.table.reap(ctx, c)
		}
		if untidy {
			s.table.sweep(ctx, c)
		}
		return nil
	})
	switch {
	case err != nil:
		return 0, s.table.gone(err)
	case !there:
		return 0, fmt.Errorf("%w: the session has expired", driver.ErrGone)
	}
	return s.opts.TTL, nil
}

// agrees reports whether the store has what it should. Requests under way make it differ for a
// moment, at the price of a list. If it has, it is this server that has it: the number changes
// under the lock, so that a ticket which is to leave has either the number from before or an
// entry that was seen since.
func (s *session) agrees(has sum, server uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var known sum
	for _, t := range s.tickets {
		if t.confirmed {
			known.count++
			known.seqs ^= t.seq
		}
	}
	if known != has {
		return false
	}
	s.server = server
	return true
}

// compare reads which entries the store has. One that we knew before we asked and that is
// not there has gone. One that belongs to no ticket came too late, and leaves again; there
// is a ticket for whatever is under way, also for what is just leaving.
func (s *session) compare(ctx context.Context, q querier, server uint64) error {
	s.mu.Lock()
	expected := map[string]*ticket{}
	for id, t := range s.tickets {
		if t.confirmed {
			expected[id] = t
		}
	}
	s.mu.Unlock()
	names := map[string]string{} // by ID
	err := each(ctx, q, s.table.named("SELECT id, name FROM {p}entries WHERE session = ?", s.id), func(r *sql.Rows) error {
		var id, name string
		err := r.Scan(&id, &name)
		names[id] = name
		return err
	})
	if err != nil {
		return err
	}
	var gone []string
	s.mu.Lock()
	for id, t := range expected {
		if _, there := names[id]; !there && !t.left && s.tickets[id] == t {
			s.goneLocked(t)
			gone = append(gone, id)
		}
	}
	for id := range s.tickets {
		delete(names, id)
	}
	s.server = server // what is still known was seen there, or is about to leave and has the old number
	s.mu.Unlock()
	for _, id := range gone {
		s.opts.Gone(id, fmt.Errorf("%w: no such entry at the renewal", driver.ErrGone))
	}
	for id, name := range names {
		if _, _, err := s.table.leave(ctx, q, name, id); err != nil {
			return err
		}
	}
	return nil
}
