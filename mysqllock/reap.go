package mysqllock

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// dead selects the sessions that have expired and that nobody is removing: who claimed one
// and did not finish within a second has died himself, or welcomes help.
const dead = "expires <= UTC_TIMESTAMP(6) AND (claimed IS NULL OR claimed <= UTC_TIMESTAMP(6) - INTERVAL 1 SECOND)"

// reap removes dead sessions. Whoever comes by does it: a waiter, a renewal, somebody who
// finds a lock taken. The claim keeps five hundred waiters from doing it all at once.
func (t *table) reap(ctx context.Context, q querier) error {
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

// bury ends a session before its time.
func (t *table) bury(ctx context.Context, q querier, id string) error {
	if _, err := run(ctx, q, t.named("UPDATE {p}sessions SET expires = '1970-01-01', claimed = UTC_TIMESTAMP(6) WHERE id = ?", id)); err != nil {
		return err
	}
	return t.remove(ctx, q, id)
}

// remove takes the entries of a session that is over out of their queues, one by one and
// each with a grant to the next, and then the session. If it ends on the way, the row stays
// and whoever comes a second later goes on. An entry that a late request makes now keeps the
// row from being deleted, and is found the same way.
func (t *table) remove(ctx context.Context, q querier, id string) error {
	type place struct{ name, id string }
	for {
		var entries []place
		err := each(ctx, q, t.named("SELECT name, id FROM {p}entries WHERE session = ? LIMIT 256", id), func(r *sql.Rows) error {
			var p place
			err := r.Scan(&p.name, &p.id)
			entries = append(entries, p)
			return err
		})
		if err != nil {
			return err
		}
		if len(entries) == 0 {
			break
		}
		for _, p := range entries {
			if _, err := t.leave(ctx, q, p.name, p.id); err != nil {
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

// sweepEvery is how often a process looks for names that nobody uses any more. One of
// sweepFirst does it with its first renewal, for where processes live for seconds: each of
// them would read the table of names, which may be long.
const (
	sweepEvery = 10 * time.Minute
	sweepFirst = 32
)

// lastSweep is of the whole process: many clients in it do not sweep more.
var lastSweep atomic.Int64

// sweep forgets names that were not locked for as long as Options.Retention says. The
// deletion compares again under the row's lock: whoever enters has just drawn a Seq of now,
// or waits behind us, and then makes a new row with a Seq of now, which is more than the one
// forgotten.
func (t *table) sweep(ctx context.Context, q querier) error {
	now := time.Now().UnixNano()
	last := lastSweep.Load()
	if now-last < int64(sweepEvery) || !lastSweep.CompareAndSwap(last, now) || last == 0 && rand.N(sweepFirst) > 0 {
		return nil
	}
	return t.forget(ctx, q)
}

func (t *table) forget(ctx context.Context, q querier) error {
	unused := statement("seq < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - ?", t.opts.Retention.Microseconds())
	var names []string
	text := t.named("SELECT name FROM {p}names n WHERE " + unused + " AND NOT EXISTS (SELECT 1 FROM {p}entries e WHERE e.name = n.name) LIMIT 1000")
	err := each(ctx, q, text, func(r *sql.Rows) error {
		var name string
		err := r.Scan(&name)
		names = append(names, name)
		return err
	})
	for _, name := range names {
		if err == nil {
			_, err = run(ctx, q, t.named("DELETE FROM {p}names WHERE name = ? AND "+unused+" AND NOT EXISTS (SELECT 1 FROM {p}entries WHERE name = ?)", name, name))
		}
	}
	return err
}
