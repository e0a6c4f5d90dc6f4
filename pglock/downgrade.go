package pglock

import (
	"context"

	"github.com/hasplock/hasp/driver"
)

// Downgrade makes the held entry smaller: one statement, and so applied as a whole or not at
// all if we die under it. An entry that was renewed too late and that nobody has buried yet
// counts as there, as it does for Leave; whether that is a lease is for its owner's clock.
func (t *ticket) Downgrade(ctx context.Context, units int64) error {
	var there bool
	err := t.session.table.ask(ctx, "SELECT hasp_downgrade(hasp_level($1::pg_catalog.text), $2::pg_catalog.text, $3::pg_catalog.text, $4::bigint)",
		[]any{t.request.Name, t.session.id, t.request.ID, units}, &there)
	if noSchema(err) || err == nil && !there {
		err = driver.ErrGone
	}
	return err
}
