package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/connlock"
)

// List reads a queue. Entries of sessions that have expired are left out, although they
// are removed only when a client meets them.
func (t *table) List(ctx context.Context, name string, limit int) ([]driver.Entry, error) {
	if err := t.fit(ctx); err != nil {
		return nil, err
	}
	var list []driver.Entry
	text := t.named(`SELECT n.seq, n.h_id, n.h_session, n.h_units, n.h_capacity, n.h_since, n.h_owner, n.h_value,
		TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), s.expires)
		FROM {p}names n JOIN {p}sessions s ON s.id = n.h_session
		WHERE n.name = ? AND n.state = 1 AND s.expires > UTC_TIMESTAMP(6)
		UNION ALL SELECT e.seq, e.id, e.session, e.units, e.capacity, e.since, e.owner, e.value,
		TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), s.expires)
		FROM {p}entries e JOIN {p}sessions s ON s.id = e.session
		WHERE e.name = ? AND s.expires > UTC_TIMESTAMP(6) ORDER BY 1`, name, name)
	if limit > 0 {
		text += t.named(" LIMIT ?", limit)
	}
	err := each(ctx, t.work, text, func(r *sql.Rows) error {
		e := driver.Entry{Request: driver.Request{Name: name}}
		var since, left int64
		err := r.Scan(&e.Seq, &e.ID, &e.Session, &e.Units, &e.Capacity, &since, &e.Owner, &e.Value, &left)
		e.Since, e.Left = time.UnixMicro(since), time.Duration(left)*time.Microsecond
		list = append(list, e)
		return err
	})
	if isMissing(err) {
		return nil, nil // dropped a moment ago
	}
	return list, err
}

// Names reads the names that have living entries, a page at a time.
func (t *table) Names(ctx context.Context, prefix string, yield func(string) bool) error {
	if err := t.fit(ctx); err != nil {
		return err
	}
	const page = 1000
	for last := ""; ; {
		var names []string
		text := t.named(`(SELECT DISTINCT e.name FROM {p}entries e JOIN {p}sessions s ON s.id = e.session
			WHERE e.name >= ? AND e.name > ? AND LEFT(e.name, ?) = ? AND s.expires > UTC_TIMESTAMP(6)
			ORDER BY e.name LIMIT ?)
			UNION (SELECT n.name FROM {p}names n JOIN {p}sessions s ON s.id = n.h_session
			WHERE n.name >= ? AND n.name > ? AND LEFT(n.name, ?) = ? AND n.state = 1 AND s.expires > UTC_TIMESTAMP(6)
			ORDER BY n.name LIMIT ?)
			ORDER BY 1 LIMIT ?`, prefix, last, len(prefix), prefix, page, prefix, last, len(prefix), prefix, page, page)
		err := each(ctx, t.work, text, func(r *sql.Rows) error {
			var name string
			err := r.Scan(&name)
			names = append(names, name)
			return err
		})
		if err != nil {
			return err
		}
		for _, name := range names {
			if strings.HasPrefix(name, prefix) && !yield(name) {
				return nil
			}
		}
		if len(names) < page {
			return nil
		}
		last = names[page-1]
	}
}

var (
	_ driver.Namer    = (*table)(nil)
	_ driver.Evicter  = (*table)(nil)
	_ driver.Migrator = (*table)(nil)
)

// List tells the holder, and waits for its record, which is made a moment after it was granted. The
// waiters are known to the server alone.
func (b *bound) List(ctx context.Context, name string, limit int) (list []driver.Entry, err error) {
	if err := b.ready(ctx); err != nil {
		return nil, err
	}
	err = connlock.Recorded(ctx, func() (unrecorded bool, err error) {
		e, recorded, err := b.look(ctx, name)
		if list = nil; e != nil {
			list = []driver.Entry{*e}
		}
		return e != nil && !recorded && !b.opts.NoFence, err
	})
	return list, err
}

// look looks once. A record of another connection than the one that holds is of an earlier holder.
// (If it is the same connection that holds again, it is shown for the few milliseconds until the
// next record.)
func (b *bound) look(ctx context.Context, name string) (e *driver.Entry, recorded bool, err error) {
	is, connection, err := b.used(ctx, name)
	if err != nil || !is {
		return nil, false, err
	}
	e = &driver.Entry{
		Request: driver.Request{Name: name, ID: fmt.Sprintf("connection-%d", connection), Units: driver.Whole, Capacity: driver.Whole},
		Session: fmt.Sprintf("connection-%d", connection),
	}
	if b.opts.NoFence {
		return e, false, nil
	}
	var noted driver.Entry
	var since int64
	var by uint64
	err = row(ctx, b.work, b.named("SELECT seq, id, connection, since, owner FROM {p}bound WHERE name = ?", name),
		&noted.Seq, &noted.ID, &by, &since, &noted.Owner)
	switch {
	case errors.Is(err, sql.ErrNoRows), err == nil && connection != 0 && by != connection:
		return e, false, nil
	case err != nil:
		return nil, false, err
	}
	e.Seq, e.ID, e.Since, e.Owner, e.Session = noted.Seq, noted.ID, time.UnixMicro(since), noted.Owner, fmt.Sprintf("connection-%d", by)
	return e, true, nil
}

// Evict removes an entry on an operator's behalf, and keeps the note, in one call. Its session
// learns of it at the next renewal.
func (t *table) Evict(ctx context.Context, name, id, note string) (err error) {
	var there bool
	switch {
	case !driver.ValidID(id):
		return driver.ErrGone // no entry has such an ID, and the server would call it too long
	case note == "":
		there, err = t.leave(ctx, t.work, name, id, "NULL")
	default:
		text := t.named("CALL {p}evict_2(?, ?, ?, ?)", name, id, note, t.opts.Retention.Microseconds())
		err = row(ctx, t.work, text, &there)
	}
	if err == nil && !there {
		err = driver.ErrGone
	}
	return t.gone(err)
}

// LastEviction reads the note.
func (t *table) LastEviction(ctx context.Context, name string) (note string, err error) {
	if err := t.fit(ctx); err != nil {
		return "", err
	}
	text := t.named("SELECT COALESCE((SELECT note FROM {p}evictions WHERE name = ?), '')", name)
	if err = row(ctx, t.work, text, &note); isMissing(err) {
		return "", nil // dropped a moment ago
	}
	return note, err
}
