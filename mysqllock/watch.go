package mysqllock

import (
	"context"
	"database/sql"
	"time"

	"github.com/hasplock/hasp/driver"
)

// The pause between two looks of a watch: a thirtieth of the time in which nothing has
// changed, which goes unnoticed, within these bounds.
const (
	leastWatch = 20 * time.Millisecond
	mostWatch  = 500 * time.Millisecond
)

// Watch polls, since MySQL cannot push, on a separate connection for as long as it lasts. Each poll
// is one statement without locks, and a client that does not watch pays nothing: if the changes of
// a name were notified, every change would cost a statement for the few that watch.
func (t *table) Watch(ctx context.Context, name string, changed func()) error {
	if err := t.fit(ctx); err != nil {
		return err
	}
	l := newKeptConn(t.kept)
	defer l.giveBack()
	var last queueState
	for since := time.Now(); ; {
		var now queueState
		began := time.Now()
		err := l.do(ctx, func(c *sql.Conn) (err error) {
			now, err = t.look(ctx, c, name)
			return err
		})
		if err != nil {
			t.lookAgain(err)
			return err
		}
		if now.forgotten(last) {
			last.seq = 0
		}
		if now != last {
			// The look comes before the call: what happens after it is in the next.
			last, since = now, began
			changed()
		}
		// A server that is short of time is looked at less.
		pause := max(leastWatch, 10*time.Since(began), min(mostWatch, time.Since(since)/30))
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
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

// look makes one look. One that is not answered ends the watch.
func (t *table) look(ctx context.Context, q querier, name string) (queueState, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, listenMost, errSilent)
	defer cancel()
	s := queueState{looked: true}
	err := row(ctx, q, t.named(`SELECT COALESCE((SELECT seq FROM {p}names WHERE name = ?), 0), COUNT(*),
		COALESCE(SUM(e.units), 0), COALESCE(SUM(e.edition), 0), COALESCE(SUM(s.expires IS NULL OR s.expires <= UTC_TIMESTAMP(6)), 0)
		FROM (SELECT h_session AS session, h_units AS units, h_edition AS edition FROM {p}names WHERE name = ? AND state = 1
			UNION ALL SELECT session, units, edition FROM {p}entries WHERE name = ?) e
		LEFT JOIN {p}sessions s ON s.id = e.session`, name, name, name),
		&s.seq, &s.entries, &s.units, &s.editions, &s.orphaned)
	if err != nil && context.Cause(ctx) == errSilent {
		err = errSilent
	}
	return s, err
}

var _ driver.Watcher = (*table)(nil)
