package mysqllock

import (
	"context"

	"github.com/hasplock/hasp/driver"
)

// Downgrade makes the held entry smaller: one call, and one transaction of the server's, so
// applied as a whole or not at all if we die under it.
func (t *ticket) Downgrade(ctx context.Context, units int64) error {
	st := t.session.table
	var there bool
	err := row(ctx, st.work, st.named("CALL {p}downgrade_2(?, ?, ?)", t.request.Name, t.request.ID, units), &there)
	if err == nil && !there {
		err = driver.ErrGone
	}
	return st.gone(err)
}
