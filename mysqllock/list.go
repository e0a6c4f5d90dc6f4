package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
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
	if missing(err) {
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

// List tells the holder. The waiters are known to the server alone.
func (b *bound) List(ctx context.Context, name string, limit int) ([]driver.Entry, error) {
	if err := b.ready(ctx); err != nil {
		return nil, err
	}
	is, connection, err := b.scheme.used(ctx, name)
	if err != nil || !is {
		return nil, err
	}
	e := driver.Entry{
		Request: driver.Request{Name: name, ID: fmt.Sprintf("connection-%d", connection), Units: driver.Whole, Capacity: driver.Whole},
		Session: fmt.Sprintf("connection-%d", connection),
	}
	if b.opts.NoFence {
		return []driver.Entry{e}, nil
	}
	var drawn driver.Entry
	var since int64
	var by uint64
	err = row(ctx, b.work, b.named("SELECT seq, id, connection, since, owner FROM {p}bound WHERE name = ?", name),
		&drawn.Seq, &drawn.ID, &by, &since, &drawn.Owner)
	switch {
	case errors.Is(err, sql.ErrNoRows), err == nil && connection != 0 && by != connection:
		return []driver.Entry{e}, nil // another program's, or one that is just being granted
	case err != nil:
		return nil, err
	}
	e.Seq, e.ID, e.Since, e.Owner, e.Session = drawn.Seq, drawn.ID, time.UnixMicro(since), drawn.Owner, fmt.Sprintf("connection-%d", by)
	return []driver.Entry{e}, nil
}

// holder is for the message that a lock is taken; "" if it is not known.
func (b *bound) holder(ctx context.Context, name string) string {
	list, err := b.List(ctx, name, 1)
	if err != nil || len(list) == 0 {
		return ""
	}
	return list[0].Owner
}
