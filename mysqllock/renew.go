package mysqllock

import (
	"context"
	"database/sql"
	"time"

	"github.com/hasplock/hasp/driver/kit/pushqueue"
)

// KeepAlive renews the session on a separate connection. The answer also tells whether the
// store has those entries that we know of and no others: entries are removed by operators
// too, and a request to enter can arrive after its ticket left.
func (s *session) KeepAlive(ctx context.Context) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	known, err := s.Known()
	if err != nil {
		return 0, err
	}
	var there, stale, untidy bool
	var entries int64
	var seqs, server, wakeup uint64
	err = s.renewal.do(ctx, func(c *sql.Conn) error {
		text := s.table.named("CALL {p}renew_2(?, ?)", s.id, s.Options.TTL.Microseconds())
		err := row(ctx, c, text, &there, &entries, &seqs, &stale, &untidy, &server, &wakeup)
		if err != nil || !there {
			return err
		}
		// What follows may fail without harm: the next renewal finds the same.
		n, folded, err := s.rows.count(ctx, c)
		if err == nil && known.Agrees(entries+n, seqs^folded) {
			s.Renewed(known, origin(server), nil)
		} else {
			_ = s.compare(ctx, c, known, server)
		}
		_ = s.wakeups.refill(ctx, c, wakeup)
		if stale {
			s.removeDeadLater()
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
		return 0, s.Dead()
	}
	return s.Options.TTL, nil
}

// compare reads which entries the store has, and removes those that came too late.
func (s *session) compare(ctx context.Context, q querier, known pushqueue.Known[extra], server uint64) error {
	names, err := s.rows.names(ctx, q) // by ID; these first, since an entry moves from there to the others
	if err != nil {
		return err
	}
	err = each(ctx, q, s.table.named("SELECT id, name FROM {p}entries WHERE session = ?", s.id), func(r *sql.Rows) error {
		var id, name string
		err := r.Scan(&id, &name)
		names[id] = name
		return err
	})
	if err != nil {
		return err
	}
	// An operator, or a session that has adopted an entry of ours, cannot release our wake-up
	// locks.
	n, wakeup, err := change(ctx, q, s.table.named("UPDATE {p}sessions SET wakeup = LAST_INSERT_ID(wakeup + 1) WHERE id = ?", s.id))
	if err == nil {
		s.wakeups.wake(sql.Null[uint64]{V: wakeup, Valid: n > 0})
	}
	for id, name := range s.Renewed(known, origin(server), names) {
		if _, _, err := s.leave(ctx, q, name, id); err != nil {
			return err
		}
	}
	return nil
}
