package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"slices"

	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/fencing/retry"
)

// Row is a row that keeps the greatest token seen itself, written under one token. Its method
// may be called at once from many goroutines.
type Row struct {
	table  *Table
	name   string
	token  uint64
	column string // that keeps the token
	key    []any
}

// With makes the row that key finds refuse every token smaller than the lease's from now on, and
// returns the Row of this token. column keeps the token: a 64-bit integer, NOT NULL DEFAULT 0. No
// further table is needed. It returns a *fencing.StaleError if the row has seen a greater token,
// and ErrNotFound if there is no such row.
//
//	order, err := orders.With(ctx, db, lease, "fence", 42)
//	err = order.Set(ctx, db, sqlfence.Columns{"state": "paid"})
//
// The token protects only this row, so the lock's holders must write no other data.
func (t *Table) With(ctx context.Context, db *sql.DB, lease fencing.Grant, column string, key ...any) (*Row, error) {
	r := &Row{table: t, name: lease.Name(), token: lease.Token(), column: column, key: slices.Clone(key)}
	if err := fencing.Check(r.name, r.token); err != nil {
		return nil, err
	}
	err := retry.Do(ctx, t.fence.tries, func() (bool, error) {
		err := r.Set(ctx, db, nil)
		return again(err), err
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Set writes columns and the token, unless the row has seen a greater token: then it returns a
// *fencing.StaleError. It is one statement with WHERE fence <= token. db may be a transaction: roll
// it back after an error, which in MySQL may have left a lock on the row. An error wrapping
// fencing.ErrConflict means that a writer without a fence changed the row.
func (r *Row) Set(ctx context.Context, db Queryer, columns Columns) error {
	t := r.table
	if err := t.check(columns, r.key, r.column); err != nil {
		return err
	}
	d, token := t.fence.dialect, int64(r.token)
	s := t.statement().add("UPDATE ", t.from(), " SET ")
	columns.set(s)
	if len(columns) > 0 {
		s.add(", ")
	}
	s.add(d.quote(r.column), " = ")
	if d == MySQL {
		// MySQL does not count a row that already has the values (unless the connection sets
		// clientFoundRows). The argument of last_insert_id comes back with the answer, if it was
		// called for a row, changed or not. Comparing the values later would be wrong: a FLOAT or a
		// DATETIME differs from the value that was written.
		s.add("last_insert_id(greatest(", d.quote(r.column), ", ").arg(token).add("))")
	} else {
		s.arg(token)
	}
	t.where(s, r.key)
	s.add(" AND ", d.quote(r.column), " <= ").arg(token)
	result, err := db.ExecContext(ctx, s.String(), s.args...)
	if err != nil {
		return t.about(err, "write", r.key)
	}
	n, err := result.RowsAffected()
	if err == nil && n == 0 && d == MySQL {
		n, err = result.LastInsertId()
	}
	switch {
	case err != nil:
		return t.about(err, "write", r.key)
	case n > 0:
		return nil
	}
	return r.unwritten(ctx, db)
}

// unwritten says why the statement wrote no row. Only failures cost this second statement.
func (r *Row) unwritten(ctx context.Context, db Queryer) error {
	t := r.table
	s := t.statement().add("SELECT ", t.fence.dialect.quote(r.column), " FROM ", t.from())
	t.where(s, r.key)
	if t.fence.dialect == MySQL {
		// In a transaction a plain SELECT reads the rows as they were at its first, when the fence
		// may have been lower than what the UPDATE has met. One that locks reads the newest.
		s.add(" LOCK IN SHARE MODE")
	}
	var seen int64
	err := db.QueryRowContext(ctx, s.String(), s.args...).Scan(&seen)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		err = ErrNotFound
	case err != nil:
	case uint64(seen) > r.token:
		return fencing.Compare(r.name, r.token, uint64(seen))
	default:
		err = fencing.ErrConflict
	}
	return t.about(err, "write", r.key)
}
