package pglock

import (
	"context"

	"github.com/hasplock/hasp/driver"
)

// Evict removes an entry on an operator's behalf, and tells its session.
func (t *table) Evict(ctx context.Context, name, id string) error {
	there, err := t.installed(ctx)
	if err == nil && there {
		there, _, err = t.leave(ctx, name, "", id)
	}
	return evicted(there, err)
}

// EvictFor does so, and keeps the note, in one statement.
func (t *table) EvictFor(ctx context.Context, name, id, note string) error {
	if err := t.ensure(ctx); err != nil {
		return err
	}
	var there bool
	err := t.ask(ctx, "SELECT hasp_evict(hasp_level($1::pg_catalog.text), $2::pg_catalog.text, $3::pg_catalog.text, $4::bigint)", []any{name, id, note, t.opts.Retention.Microseconds()}, &there)
	return evicted(there, err)
}

func evicted(there bool, err error) error {
	if noSchema(err) || err == nil && !there {
		return driver.ErrGone
	}
	return err
}

// LastEviction reads the note.
func (t *table) LastEviction(ctx context.Context, name string) (note string, err error) {
	err = t.ask(ctx, "SELECT coalesce((SELECT v.note FROM hasp_evictions v WHERE v.name OPERATOR(pg_catalog.=) $1::pg_catalog.text), '')", []any{name}, &note)
	if noSchema(err) {
		return "", ctx.Err() // nobody has used it yet
	}
	return note, err
}

var _ driver.Recorder = (*table)(nil)
