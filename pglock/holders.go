package pglock

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
)

// List returns who holds. Waiters are the server's secret: its lock table has their
// processes, but not their names.
func (b *bound) List(ctx context.Context, name string, limit int) ([]driver.Entry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var list []driver.Entry
	err := b.eachHolder(ctx, name, func(e driver.Entry, pid int64) {
		list = append(list, e)
	})
	return driver.First(list, limit), err
}

func (b *bound) eachHolder(ctx context.Context, name string, one func(e driver.Entry, pid int64)) error {
	query, args, err := b.kind.holders(name)
	if err != nil {
		return nil // no such lock can be held
	}
	return b.look(ctx, query, args, name, func(r runner, query string, args []any) error {
		return b.scan(ctx, r, query, args, name, one)
	})
}

// look has do read the holders. advisory does without tables, if it draws no tokens: then
// nobody has left his name.
func (b *bound) look(ctx context.Context, query string, args []any, name string, do func(r runner, query string, args []any) error) error {
	err := b.safely(ctx, func(r runner) error { return do(r, query, args) })
	if a, advisory := b.kind.(advisory); advisory && noSchema(err) {
		if query, args, err = a.strangers(name); err == nil {
			err = b.safely(ctx, func(r runner) error { return do(r, query, args) })
		}
	}
	if noSchema(err) {
		return ctx.Err()
	}
	return explain(ctx, err)
}

// unnamed begins the ID of a holder who has left no name.
const unnamed = "pid-"

func (b *bound) scan(ctx context.Context, r runner, query string, args []any, name string, one func(e driver.Entry, pid int64)) error {
	return r.each(ctx, b.naming.sql(query), args, anyNumber, func(scan func(...any) error) error {
		var pid, seq, since int64
		e := driver.Entry{Request: driver.Request{Name: name, Units: driver.Whole, Capacity: driver.Whole}}
		err := scan(&pid, &seq, &e.ID, &e.Owner, &since)
		e.Seq, e.Session = uint64(seq), fmt.Sprint(unnamed, pid)
		if e.ID == "" {
			e.ID = e.Session // somebody else's
		} else {
			e.Since = time.UnixMicro(since)
		}
		one(e, pid)
		return err
	})
}

// Names lists what is held and has a name: locks of other programs are numbers.
func (b *bound) Names(ctx context.Context, prefix string, yield func(string) bool) error {
	return b.eachName(ctx, b.kind.names(), prefix, yield)
}

// Evict ends the connection of the holder, who learns of it at once. A role may do that to
// its own connections.
func (b *bound) Evict(ctx context.Context, name, id string) error {
	found := int64(0)
	err := b.eachHolder(ctx, name, func(e driver.Entry, pid int64) {
		if e.ID == id {
			found = pid
		}
	})
	var ended bool
	if err == nil && found != 0 {
		ended, err = b.end(ctx, name, id, found)
	}
	if err == nil && !ended {
		err = driver.ErrGone
	}
	return err
}

// end ends a connection if it holds the name for this entry. By now it may have given that back,
// and lie idle or hold another lock. So its gate is shut first, and then looked again: whoever
// wants to take another lock on it waits at the gate, and is ended there, before anything was
// granted; the core asks again. The row of the name is locked as well: a grant of the
// same name on the same connection is either to be seen by then, or does not come about. (With
// strategy row it may yet, and is told as lost at once.) We go before the connection ends: the
// server has sent the signal by then.
func (b *bound) end(ctx context.Context, name, id string, pid int64) (ended bool, err error) {
	query, args, err := b.kind.holders(name)
	if err != nil {
		return false, err
	}
	err = b.look(ctx, query, args, name, func(r runner, query string, args []any) error {
		if err := one(ctx, r, "SELECT pg_advisory_xact_lock(1751216001, $1::int)::text", []any{pid}, new(string)); err != nil {
			return err
		}
		if !strings.HasPrefix(id, unnamed) {
			err := r.each(ctx, b.naming.sql("SELECT h.name FROM hasp_holders h WHERE h.name = $1::text FOR UPDATE"), []any{name}, anyNumber,
				func(scan func(...any) error) error { return scan(new(string)) })
			if err != nil {
				return err
			}
		}
		holds := false
		err := b.scan(ctx, r, query, args, name, func(e driver.Entry, p int64) { holds = holds || p == pid && e.ID == id })
		if err != nil || !holds {
			return err
		}
		return one(ctx, r, "SELECT pg_terminate_backend($1::int)", []any{pid}, &ended)
	})
	return ended, err
}
