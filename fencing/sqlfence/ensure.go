package sqlfence

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/hasplock/hasp/internal/retry"
)

// EnsureTable creates the table if it does not exist. Programs without migrations call it once when
// they start. If the table exists, the role needs no right to create it.
func (g *Fence) EnsureTable(ctx context.Context, db *sql.DB) error {
	return retry.Do(ctx, g.tries, func() (bool, error) {
		// CREATE TABLE IF NOT EXISTS asks for the right to create before it looks.
		if g.there(ctx, db) {
			return false, nil
		}
		_, err := db.ExecContext(ctx, g.Schema())
		// IF NOT EXISTS of PostgreSQL is no lock: if two create the table at once, one fails in the
		// catalog, at the table, its type or their unique index, and finds the table when it looks
		// again.
		s := state(err)
		exists := s == "23505" || s == "42P07" || s == "42710"
		if err != nil {
			err = fmt.Errorf("make table %s: %w", g.table, err)
		}
		return exists || again(err), err
	})
}

// there reports whether the table can be read. If not, the attempt to create it gives the reason.
func (g *Fence) there(ctx context.Context, db *sql.DB) bool {
	rows, err := db.QueryContext(ctx, g.LookSQL())
	if err != nil {
		return false
	}
	for rows.Next() {
	}
	return rows.Close() == nil && rows.Err() == nil
}
