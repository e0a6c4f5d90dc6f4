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
	var there, stale bool
	var has sum
	err := s.renewal.do(ctx, func(c *sql.Conn) error {
		text := s.table.named("CALL {p}renew_1(?, ?)", s.id, s.opts.TTL.Microseconds())
		err := row(ctx, c, text, &there, &has.count, &has.seqs, &stale)
		if err != nil || !there {
			return err
		}
		// What follows may fail without harm: the next renewal finds the same.
		if has != s.known() {
			_ = s.compare(ctx, c)
		}
		if stale {
			_ = s.table.reap(ctx, c)
		}
		_ = s.table.sweep(ctx, c)
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

// known is what the store should have. Requests under way make it differ for a moment, at
// the price of a list.
func (s *session) known() (k sum) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tickets {
		if t.confirmed {
			k.count++
			k.seqs ^= t.seq
		}
	}
	return k
}

// compare reads which entries the store has. One that we knew before we asked and that is
// not there has gone. One that belongs to no ticket came too late, and leaves again; there
// is a ticket for whatever is under way, also for what is just leaving.
func (s *session) compare(ctx context.Context, q querier) error {
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
	s.mu.Unlock()
	for _, id := range gone {
		s.opts.Gone(id, fmt.Errorf("%w: no such entry at the renewal", driver.ErrGone))
	}
	for id, name := range names {
		if _, err := s.table.leave(ctx, q, name, id); err != nil {
			return err
		}
	}
	return nil
}
