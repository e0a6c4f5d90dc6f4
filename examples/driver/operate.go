package sqlitelock

import (
	"context"
	"database/sql"
	"slices"

	"github.com/hasplock/hasp/driver"
)

// What is optional. Each is a statement that changes a row that is there, or says ErrGone.
var (
	_ driver.Publisher  = (*ticket)(nil)
	_ driver.Downgrader = (*ticket)(nil)
	_ driver.Adopter    = (*ticket)(nil)
	_ driver.Evicter    = (*backend)(nil)
	_ driver.Namer      = (*backend)(nil)
	_ driver.Identifier = (*backend)(nil)
)

func (t *ticket) Publish(ctx context.Context, value []byte) error {
	return t.session.backend.change(ctx, `UPDATE hasp_entries SET value = ? WHERE id = ? AND expires > `+now, value, t.request.ID)
}

// Downgrade never makes an entry larger, so that it may come twice.
func (t *ticket) Downgrade(ctx context.Context, units int64) error {
	return t.session.backend.change(ctx, `UPDATE hasp_entries SET units = min(units, ?) WHERE id = ? AND expires > `+now, units, t.request.ID)
}

func (b *backend) Evict(ctx context.Context, name, id string) error {
	return b.change(ctx, `DELETE FROM hasp_entries WHERE name = ? AND id = ? AND expires > `+now, name, id)
}

// Adopt gives the row another owner. The old one's session finds no row by the old ID, and tells it.
func (t *ticket) Adopt(ctx context.Context, id string, seq uint64) (driver.Verdict, error) {
	s, r := t.session, t.request
	err := s.backend.write(ctx, func(tx *sql.Tx) error {
		queue, err := current(ctx, tx, r.Name, 0)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(queue, func(e driver.Entry) bool { return e.Seq == seq })
		if i < 0 {
			return driver.ErrGone
		}
		old := queue[i]
		if old.ID == r.ID {
			return nil // the first answer was lost
		}
		held, _ := driver.Decide(queue[:i], old.Request)
		if old.ID != id || !held || old.Units != r.Units || old.Capacity != r.Capacity {
			return driver.ErrGone
		}
		if err := s.note(t); err != nil {
			return err
		}
		return exec(ctx, tx, `UPDATE hasp_entries SET id = ?, owner = ?, since = ?, session = ?, expires = ? + `+now+` WHERE seq = ?`,
			r.ID, r.Owner, r.Since.UnixNano(), s.id, until(s.opts.TTL), seq)
	})
	if err != nil {
		return driver.Verdict{}, err
	}
	s.mu.Lock()
	t.confirmed = true
	s.mu.Unlock()
	return driver.Verdict{Held: true, Token: seq}, nil
}
