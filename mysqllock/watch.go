package mysqllock

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
)

// The pause between two looks of a watch: a thirtieth of the time in which nothing has
// changed, which goes unnoticed, within these bounds.
const (
	leastWatch = 20 * time.Millisecond
	mostWatch  = 500 * time.Millisecond
)

// mostLooked is how many names one statement looks at.
const mostLooked = 200

// Watch polls, since MySQL cannot push, on one connection for all names that are watched through
// this store. Each poll is one statement without locks, for all names that are due, and a client
// that does not watch pays nothing: if the changes of a name were notified, every change would cost
// a statement for the few that watch.
func (t *table) Watch(ctx context.Context, name string, changed func()) error {
	if err := t.fit(ctx); err != nil {
		return err
	}
	return t.watched.Watch(ctx, name, changed)
}

// lastLook has what a name looked like, and since when.
type lastLook struct {
	queueState
	since time.Time
}

// watchAll is the group's Run.
func (t *table) watchAll(ctx context.Context) error {
	l := newKeptConn(t.kept)
	defer l.giveBack()
	last := map[string]lastLook{}
	for ctx.Err() == nil {
		all, due := t.watched.Names()
		if len(due) == 0 {
			for name := range last {
				if !all[name] {
					delete(last, name)
				}
			}
			asleep, cancel := t.watched.Pause(ctx)
			<-asleep.Done()
			cancel()
			continue
		}
		due = due[:min(len(due), mostLooked)]
		began := time.Now()
		var now map[string]queueState
		err := l.do(ctx, func(c *sql.Conn) (err error) {
			now, err = t.look(ctx, c, due)
			return err
		})
		if err != nil {
			t.lookAgain(err)
			return err
		}
		took := time.Since(began)
		for _, name := range due {
			was, state := last[name], now[name]
			state.looked = true
			if state.forgotten(was.queueState) {
				was.seq = 0
			}
			changed := state != was.queueState
			if changed {
				was.since = began
			}
			last[name] = lastLook{state, was.since}
			// The look comes before the call: what happens after it is in the next. A server that is
			// short of time is looked at less.
			t.watched.Asked(name, together(max(leastWatch, 10*took, min(mostWatch, time.Since(was.since)/30))))
			if changed {
				t.watched.Changed(name)
			}
		}
	}
	return ctx.Err()
}

// queueState is as much of a queue as cannot stay the same when the queue changes. While seq stays
// no entry came; then while entries stays none left; and then units only fall, editions only
// grow, and sessions only die.
type queueState struct {
	looked                             bool // also at a name that was never used
	seq                                uint64
	entries, units, editions, orphaned int64
}

// forgotten reports that the only change is that the row of an idle name is gone: it was swept,
// which no watch should report.
func (s queueState) forgotten(last queueState) bool {
	return s.seq == 0 && s.entries == 0 && last.entries == 0 && last.looked
}

// together shortens a pause by less than a quarter, so that names are due at the same moments.
func together(pause time.Duration) time.Duration {
	now := time.Now()
	return now.Add(pause).Truncate(max(leastWatch, pause/4)).Sub(now)
}

// look looks at some names; those that were never used are not in its answer. One that is not
// answered ends the watch.
func (t *table) look(ctx context.Context, q querier, names []string) (map[string]queueState, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, listenMost, errSilent)
	defer cancel()
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = literal(name)
	}
	list := expression(strings.Join(all, ","))
	found := make(map[string]queueState, len(names))
	err := each(ctx, q, t.named(`SELECT n.name, n.seq, COUNT(e.name), COALESCE(SUM(e.units), 0), COALESCE(SUM(e.edition), 0),
			COALESCE(SUM(e.name IS NOT NULL AND (s.expires IS NULL OR s.expires <= UTC_TIMESTAMP(6))), 0)
		FROM {p}names n LEFT JOIN (SELECT name, h_session AS session, h_units AS units, h_edition AS edition FROM {p}names WHERE state = 1 AND name IN (?)
			UNION ALL SELECT name, session, units, edition FROM {p}entries WHERE name IN (?)) e ON e.name = n.name
		LEFT JOIN {p}sessions s ON s.id = e.session WHERE n.name IN (?) GROUP BY n.name, n.seq`, list, list, list), func(r *sql.Rows) error {
		var name string
		var s queueState
		err := r.Scan(&name, &s.seq, &s.entries, &s.units, &s.editions, &s.orphaned)
		found[name] = s
		return err
	})
	if err != nil && context.Cause(ctx) == errSilent {
		err = errSilent
	}
	return found, err
}

var _ driver.Watcher = (*table)(nil)
