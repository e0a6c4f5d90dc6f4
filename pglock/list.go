package pglock

import (
	"context"
	"fmt"
	"time"

	"github.com/hasplock/hasp/driver"
)

// List reads a queue. Entries that have expired are left out, although they are removed
// only when a client meets them.
func (t *table) List(ctx context.Context, name string, limit int) ([]driver.Entry, error) {
	if there, err := t.installed(ctx); err != nil || !there {
		return nil, err // it was never used
	}
	var list []driver.Entry
	err := t.pool.each(ctx, t.naming.sql(`SELECT e.*, s.expires, hasp_now() FROM hasp_list($1::pg_catalog.text, $2::bigint) e
		JOIN hasp_sessions s ON s.id OPERATOR(pg_catalog.=) e.o_session ORDER BY e.o_seq USING OPERATOR(pg_catalog.<)`),
		[]any{name, int64(limit)}, anyNumber,
		func(scan func(...any) error) error {
			var seq, since, expires, now int64
			e := driver.Entry{Request: driver.Request{Name: name}}
			err := scan(&seq, &e.ID, &e.Session, &e.Units, &e.Capacity, &e.Owner, &since, &e.Value, &expires, &now)
			e.Left = time.Duration(expires-now) * time.Microsecond
			e.Seq, e.Since = uint64(seq), time.UnixMicro(since)
			list = append(list, e)
			return err
		})
	if noSchema(err) {
		t.forget()
		return nil, ctx.Err() // it was dropped
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

// List returns the holder. The waiters are not known: the server's lock table has their
// processes, but not their names.
func (b *bound) List(ctx context.Context, name string, limit int) ([]driver.Entry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var list []driver.Entry
	err := b.recorded(ctx, func() (without bool, err error) {
		list = nil
		err = b.eachHolder(ctx, name, func(e driver.Entry, pid int64) {
			list = append(list, e)
			without = without || e.ID == e.Session
		})
		return without, err
	})
	return driver.First(list, limit), err
}

func (b *bound) eachHolder(ctx context.Context, name string, one func(e driver.Entry, pid int64)) error {
	query, args, err := b.holders(name)
	if err != nil {
		return nil // no such lock can be held
	}
	return b.readHolders(ctx, query, args, name, func(r runner, query string, args []any) error {
		return b.scan(ctx, r, query, args, name, one)
	})
}

// readHolders has do read the holders. Without tokens no tables are needed, and no holder has a
// name.
func (b *bound) readHolders(ctx context.Context, query string, args []any, name string, do func(r runner, query string, args []any) error) error {
	err := b.safely(ctx, func(r runner) error { return do(r, query, args) })
	if noSchema(err) {
		if query, args, err = b.holdersWithoutTables(name); err == nil {
			err = b.safely(ctx, func(r runner) error { return do(r, query, args) })
		}
	}
	if noSchema(err) {
		return ctx.Err()
	}
	return explain(ctx, err)
}

// unnamed begins the ID of a holder without a name.
const unnamed = "pid-"

func (b *bound) scan(ctx context.Context, r runner, query string, args []any, name string, one func(e driver.Entry, pid int64)) error {
	return r.each(ctx, b.naming.sql(query), args, anyNumber, func(scan func(...any) error) error {
		var pid, seq, since int64
		e := driver.Entry{Request: driver.Request{Name: name, Units: driver.Whole, Capacity: driver.Whole}}
		err := scan(&pid, &seq, &e.ID, &e.Owner, &since)
		e.Seq, e.Session = uint64(seq), fmt.Sprint(unnamed, pid)
		if e.ID == "" {
			e.ID = e.Session // another program's
		} else {
			e.Since = time.UnixMicro(since)
		}
		one(e, pid)
		return err
	})
}

// Names lists what is held and has a name: locks of other programs are numbers.
func (b *bound) Names(ctx context.Context, prefix string, yield func(string) bool) error {
	err := b.recorded(ctx, func() (without bool, err error) {
		err = b.safely(ctx, func(r runner) error {
			return one(ctx, r, b.naming.sql(anyUnnamedSQL), nil, &without)
		})
		if noSchema(err) {
			err = nil
		}
		return without, explain(ctx, err)
	})
	if err != nil {
		return err
	}
	return b.eachName(ctx, namesSQL, prefix, yield)
}
