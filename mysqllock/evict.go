package mysqllock

import (
	"context"

	"github.com/hasplock/hasp/driver"
)

// Evict removes an entry on an operator's behalf. Its session learns of it at the next
// renewal.
func (t *table) Evict(ctx context.Context, name, id string) error {
	if !driver.ValidID(id) {
		return driver.ErrGone // no entry has such an ID, and the server would call it too long
	}
	there, err := t.leave(ctx, t.work, name, id, "NULL")
	if err == nil && !there {
		err = driver.ErrGone
	}
	return t.gone(err)
}

// EvictFor does so, and keeps the note, in one call.
func (t *table) EvictFor(ctx context.Context, name, id, note string) error {
	if !driver.ValidID(id) {
		return driver.ErrGone
	}
	var there bool
	text := t.named("CALL {p}evict_1(?, ?, ?, ?)", name, id, note, t.opts.Retention.Microseconds())
	err := row(ctx, t.work, text, &there)
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
	if err = row(ctx, t.work, text, &note); missing(err) {
		return "", nil // dropped a moment ago
	}
	return note, err
}

var _ driver.Recorder = (*table)(nil)
