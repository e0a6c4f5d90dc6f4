package mysqllock

import (
	"context"
	"database/sql"
	"time"
)

// dead selects the sessions that have expired and that no client is removing: a client that claimed
// one and did not finish within a second has died as well, or can do with help.
const dead = "expires <= UTC_TIMESTAMP(6) AND (claimed IS NULL OR claimed <= UTC_TIMESTAMP(6) - INTERVAL 1 SECOND)"

// removeDead removes dead sessions. Every client helps: a waiter, a renewal, a try that
// finds a lock taken. The claim keeps five hundred waiters from doing it all at once.
func (t *table) removeDead(ctx context.Context, q querier) error {
	var ids []string
	err := each(ctx, q, t.named("SELECT id FROM {p}sessions WHERE "+dead+" ORDER BY expires LIMIT 16"), func(r *sql.Rows) error {
		var id string
		err := r.Scan(&id)
		ids = append(ids, id)
		return err
	})
	if err != nil {
		return err
	}
	for _, id := range ids {
		// The moment is compared under the row's lock, with what a renewal has just committed.
		n, err := run(ctx, q, t.named("UPDATE {p}sessions SET expires = '1970-01-01', claimed = UTC_TIMESTAMP(6) WHERE id = ? AND "+dead, id))
		if err == nil && n > 0 {
			err = t.remove(ctx, q, id)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// endSession ends a session before its time.
func (t *table) endSession(ctx context.Context, q querier, id string) error {
	if _, err := run(ctx, q, t.named("UPDATE {p}sessions SET expires = '1970-01-01', claimed = UTC_TIMESTAMP(6) WHERE id = ?", id)); err != nil {
		return err
	}
	return t.remove(ctx, q, id)
}

// remove takes the entries of a session that is over out of their queues, one by one and
// each with a grant to the next, and then the session. If it ends on the way, the row stays
// and a client that comes a second later goes on. An entry that a late request makes now keeps the
// row from being deleted, and is found the same way.
func (t *table) remove(ctx context.Context, q querier, id string) error {
	type entry struct{ name, id string }
	for {
		var entries []entry
		err := each(ctx, q, t.named("SELECT name, id FROM {p}entries WHERE session = ? LIMIT 256", id), func(r *sql.Rows) error {
			var e entry
			err := r.Scan(&e.name, &e.id)
			entries = append(entries, e)
			return err
		})
		if err != nil {
			return err
		}
		if len(entries) == 0 {
			break
		}
		for _, e := range entries {
			if _, err := t.leave(ctx, q, e.name, e.id); err != nil {
				return err
			}
		}
	}
	_, err := run(ctx, q, t.named("DELETE FROM {p}sessions WHERE id = ?", id))
	if number(err) == errHasChildren {
		err = nil
	}
	return err
}

// sweepFirst: one of so many sessions begins with a sweep, for where processes live for
// seconds and never renew. sweepMost bounds what a renewal spends on it.
const (
	sweepFirst = 32
	sweepMost  = time.Second
)

// sweep forgets what was idle for Options.Retention. The database records when that was last done:
// a thousand clients do it no more often than one. It may fail without harm: another client sweeps
// later.
func (s *store) sweep(ctx context.Context, q querier) {
	ctx, cancel := context.WithTimeout(ctx, sweepMost)
	defer cancel()
	_, _ = run(ctx, q, s.named("CALL {p}sweep_1(?)", s.opts.Retention.Microseconds()))
}

// sweepEvery is how often a process asks whether it is due, with the strategies whose renewals
// are not told.
const sweepEvery = time.Minute

// tidy is sweep, for these strategies.
func (b *bound) tidy(ctx context.Context) {
	now, last := time.Now().UnixNano(), b.tidied.Load()
	if !b.opts.NoFence && now-last >= int64(sweepEvery) && b.tidied.CompareAndSwap(last, now) {
		b.sweep(ctx, b.work)
	}
}
