package pglock

import (
	"context"
	"time"

	"github.com/hasplock/hasp/driver"
)

// List reads a queue. Entries that have expired are left out, although they are removed
// only when somebody comes by.
func (t *table) List(ctx context.Context, name string, limit int) ([]driver.Entry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var list []driver.Entry
	err := t.pool.each(ctx, t.naming.sql(`SELECT e.seq, e.id, e.session, e.units, e.capacity, e.owner, e.since, e.value
		FROM hasp_entries e JOIN hasp_sessions s ON s.id = e.session
		WHERE e.name = $1 AND s.expires > hasp_now() ORDER BY e.seq`), []any{name}, anyNumber,
		func(scan func(...any) error) error {
			var seq, since int64
			e := driver.Entry{Request: driver.Request{Name: name}}
			err := scan(&seq, &e.ID, &e.Session, &e.Units, &e.Capacity, &e.Owner, &since, &e.Value)
			e.Seq, e.Since = uint64(seq), time.UnixMicro(since)
			list = append(list, e)
			return err
		})
	if noSchema(err) {
		return nil, ctx.Err() // nobody has used it yet
	}
	return driver.First(list, limit), explain(ctx, err)
}

// Names lists the names that have living entries.
func (t *table) Names(ctx context.Context, prefix string, yield func(string) bool) error {
	return t.eachName(ctx, `SELECT DISTINCT e.name FROM hasp_entries e JOIN hasp_sessions s ON s.id = e.session
		WHERE starts_with(e.name, $1) AND s.expires > hasp_now()`, prefix, yield)
}

// eachName yields what a query finds. All is collected first: yield may take its time, and
// use the connection we have.
func (t *tables) eachName(ctx context.Context, query, prefix string, yield func(string) bool) error {
	var names []string
	err := t.pool.each(ctx, t.naming.sql(query), []any{prefix}, anyNumber, func(scan func(...any) error) error {
		var name string
		err := scan(&name)
		names = append(names, name)
		return err
	})
	if err != nil && !noSchema(err) {
		return explain(ctx, err)
	}
	for _, name := range names {
		if !yield(name) {
			break
		}
	}
	return ctx.Err()
}
