package pglock

import (
	"context"
	"strings"

	"github.com/hasplock/hasp/driver"
)

// Evict removes an entry on an operator's behalf, tells its session, and keeps the note, in one
// statement.
func (t *table) Evict(ctx context.Context, name, id, note string) error {
	if !driver.ValidID(id) {
		return driver.ErrGone // no entry has such an ID, and the server could not even read some
	}
	there, err := t.installed(ctx)
	switch {
	case err != nil || !there:
	case note == "":
		there, _, err = t.leave(ctx, leaveSlowly, name, "", id)
	default:
		err = t.ask(ctx, "SELECT hasp_evict(hasp_level($1::pg_catalog.text), $2::pg_catalog.text, $3::pg_catalog.text, $4::bigint)", []any{name, id, note, t.opts.Retention.Microseconds()}, &there)
	}
	if noSchema(err) || err == nil && !there {
		return driver.ErrGone
	}
	return err
}

// LastEviction reads the note.
func (t *table) LastEviction(ctx context.Context, name string) (note string, err error) {
	err = t.ask(ctx, "SELECT coalesce((SELECT v.note FROM hasp_evictions v WHERE v.name OPERATOR(pg_catalog.=) $1::pg_catalog.text), '')", []any{name}, &note)
	if noSchema(err) {
		return "", ctx.Err() // it was never used
	}
	return note, err
}

// Evict ends the connection of the holder, which learns of it at once. A role may do that to
// its own connections.
func (b *bound) Evict(ctx context.Context, name, id, _ string) error {
	found := int64(0)
	err := b.recorded(ctx, func() (without bool, err error) {
		err = b.eachHolder(ctx, name, func(e driver.Entry, pid int64) {
			if e.ID == id {
				found = pid
			}
			without = found == 0 && e.ID == e.Session
		})
		return without, err
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

// LastEviction has none: an advisory lock has no room for notes.
func (b *bound) LastEviction(context.Context, string) (string, error) {
	return "", driver.ErrUnsupported
}

// end ends a connection if it holds the name for this entry. By now it may have given that back,
// and be idle or hold another lock. So its eviction lock is taken first, and then the holder is
// read again: a request that is about to acquire another lock on it waits for the eviction lock,
// and is ended there, before anything was granted; the core asks again. The row of the name is
// locked as well: the record of a grant of the same name on the same connection, which is made
// before that is told (note.go), either is visible by then, or is not made. This transaction ends
// before the connection does: the server has sent the signal by then.
func (b *bound) end(ctx context.Context, name, id string, pid int64) (ended bool, err error) {
	query, args, err := b.holders(name)
	if err != nil {
		return false, err
	}
	err = b.readHolders(ctx, query, args, name, func(r runner, query string, args []any) error {
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
