package pglock

import (
	"context"
	"time"

	"github.com/hasplock/hasp/driver"
)

// List reads a queue. Entries that have expired are left out, although they are removed
// only when somebody comes by.
func (t *table) List(ctx context.Context, name string, limit int) ([]driver.Entry, error) {
	if there, err := t.installed(ctx); err != nil || !there {
		return nil, err // nobody has used it yet
	}
	var list []driver.Entry
	err := t.pool.each(ctx, t.naming.sql("SELECT e.* FROM hasp_list($1::pg_catalog.text, $2::bigint) e"), []any{name, int64(limit)}, anyNumber,
		func(scan func(...any) error) error {
			var seq, since int64
			e := driver.Entry{Request: driver.Request{Name: name}}
			err := scan(&seq, &e.ID, &e.Session, &e.Units, &e.Capacity, &e.Owner, &since, &e.Value)
			e.Seq, e.Since = uint64(seq), time.UnixMicro(since)
			list = append(list, e)
			return err
		})
	if noSchema(err) {
		t.forget()
		return nil, ctx.Err() // somebody has dropped it
	}
	return list, explain(ctx, err)
}

// Names lists the names that have living entries.
func (t *table) Names(ctx context.Context, prefix string, yield func(string) bool) error {
	if there, err := t.installed(ctx); err != nil || !there {
		return err
	}
	return t.eachName(ctx, "SELECT f.* FROM hasp_find($1::pg_catalog.text) f", prefix, yield)
}

// eachName yields what a query finds. All is collected first: yield may take its time, and
// use the connection we have.
func (t *tables) eachName(ctx context.Context, query, prefix string, yield func(string) bool) error {
	var names []string
	err := t.safely(ctx, func(r runner) error {
		return r.each(ctx, t.naming.sql(query), []any{prefix}, anyNumber, func(scan func(...any) error) error {
			var name string
			err := scan(&name)
			names = append(names, name)
			return err
		})
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
