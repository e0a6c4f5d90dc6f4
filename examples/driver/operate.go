package sqlitelock

import (
	"context"

	"github.com/hasplock/hasp/driver"
)

// What is optional, and one statement: it changes a row that is there, or says ErrGone. An own row
// must hold: one that waits would hold beside those ahead of it, if it became smaller.
var (
	_ driver.Publisher  = (*ticket)(nil)
	_ driver.Downgrader = (*ticket)(nil)
	_ driver.Evicter    = (*backend)(nil)
	_ driver.Namer      = (*backend)(nil)
)

func (t *ticket) Publish(ctx context.Context, value []byte) error {
	return t.change(ctx, `value = ?`, value)
}

// Downgrade never makes an entry larger, so that it may come twice.
func (t *ticket) Downgrade(ctx context.Context, units int64) error {
	return t.change(ctx, `units = min(units, ?)`, units)
}

func (t *ticket) change(ctx context.Context, set string, to any) error {
	t.session.mu.Lock()
	holds := t.holds
	t.session.mu.Unlock()
	if !holds {
		return driver.ErrGone
	}
	return t.session.backend.change(ctx, `UPDATE hasp_entries SET `+set+` WHERE `+own, append([]any{to}, t.own()...)...)
}

// Evict keeps no note of who evicts and why: LastEviction says so.
func (b *backend) Evict(ctx context.Context, name, id, _ string) error {
	return b.change(ctx, `DELETE FROM hasp_entries WHERE name = ? AND id = ? AND expires > `+now, name, id)
}

func (b *backend) LastEviction(context.Context, string) (string, error) {
	return "", driver.ErrUnsupported
}
