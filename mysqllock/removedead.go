package mysqllock

import (
	"context"
	"database/sql"
	"math"
	"strings"
	"time"
)

// removeDead removes sessions that have expired, and that no other client is removing, for up to so
// many claims, and reports whether it has claimed any. Every client helps: a waiter, a renewal, a
// try that finds a lock taken. The next ones are claimed before the last are gone, since a young
// claim keeps the other clients from looking.
func (t *table) removeDead(ctx context.Context, claims int) (some bool, err error) {
	claimed, err := t.claim(ctx, true)
	some = len(claimed) > 0
	for n := 1; err == nil && len(claimed) > 0; n++ {
		var next []string
		if n < claims {
			next, err = t.claim(ctx, false)
		}
		for _, id := range claimed {
			if err == nil {
				err = t.remove(ctx, t.work, id)
			}
		}
		claimed = next
	}
	return some, err
}

func (t *table) claim(ctx context.Context, first bool) ([]string, error) {
	p, ids := 0, ""
	if first {
		p = 1
	}
	err := onConn(ctx, t.work, func(c *sql.Conn) error { return row(ctx, c, t.named("CALL {p}claim_2(?)", p), &ids) })
	return strings.Fields(ids), err
}

// removeDeadLater does so in the background until nothing is left to do, or the session ends.
func (s *session) removeDeadLater() {
	s.Lock()
	defer s.Unlock()
	if s.removing || s.Closed() {
		return
	}
	s.removing = true
	s.listeners.Add(1)
	go func() {
		defer s.listeners.Done()
		_, _ = s.table.removeDead(s.Done, math.MaxInt) // who is told that something is left tries again
		s.Lock()
		defer s.Unlock()
		s.removing = false
	}()
}

// endSession ends a session before its time. Its claim has another day, since it says nothing of
// clients that remove what others have left.
func (t *table) endSession(ctx context.Context, q querier, id string) error {
	if _, err := run(ctx, q, t.named("UPDATE {p}sessions SET expires = '1970-01-02', claimed = UTC_TIMESTAMP(6) WHERE id = ?", id)); err != nil {
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
			if _, err := t.leave(ctx, q, e.name, e.id, expression(literal(id))); err != nil {
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
	_, _ = run(ctx, q, s.named("CALL {p}sweep_2(?)", s.opts.Retention.Microseconds()))
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
