package sqlfence

import (
	"context"
	"database/sql"
	"errors"

	"github.com/hasplock/hasp/fencing/retry"
)

// Modify changes the row that key finds, the optimistic way: it scans columns and the version into
// your variables, calls change to compute new values in them, and writes these only if the version
// is still the one that was read, raising it by one. If another writer was faster, it begins again
// with the new values, after a short random wait; after Options.Tries tries it returns an error
// wrapping fencing.ErrConflict and nothing is written.
//
//	var stock int
//	err := items.Modify(ctx, db, "version", sqlfence.Columns{"stock": &stock}, func() error {
//		if stock == 0 {
//			return errSoldOut
//		}
//		stock--
//		return nil
//	}, 42)
//
// The version is a column of integers, NOT NULL, that every writer of the row raises; it is not
// among columns. change may run more than once; an error of it ends Modify, unchanged. No writer
// waits for another, which is best while collisions are rare. There is no lock here and no token:
// other rows that change reads are not protected.
//
// It takes the database and not a transaction: inside one, at REPEATABLE READ, it would read the
// same old version for ever.
func (t *Table) Modify(ctx context.Context, db *sql.DB, version string, columns Columns, change func() error, key ...any) error {
	if err := t.check(columns, key, version); err != nil {
		return err
	}
	return retry.Do(ctx, t.fence.tries, func() (bool, error) {
		moved, err := t.modify(ctx, db, version, columns, change, key)
		return moved || again(err), err
	})
}

var errMoved = errors.New("the row was changed by another")

// modify is one try.
func (t *Table) modify(ctx context.Context, db *sql.DB, version string, columns Columns, change func() error, key []any) (moved bool, err error) {
	d := t.fence.dialect
	var v int64
	s := t.statement().add("SELECT ", d.list(append(columns.names(), version)), " FROM ", t.from())
	t.where(s, key)
	err = db.QueryRowContext(ctx, s.String(), s.args...).Scan(append(columns.values(), &v)...)
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNotFound
	}
	if err != nil {
		return false, t.about(err, "read", key)
	}
	if err := change(); err != nil {
		return false, err
	}
	s = t.statement().add("UPDATE ", t.from(), " SET ")
	columns.set(s)
	if len(columns) > 0 {
		s.add(", ")
	}
	s.add(d.quote(version), " = ").arg(v + 1)
	t.where(s, key)
	s.add(" AND ", d.quote(version), " = ").arg(v)
	r, err := db.ExecContext(ctx, s.String(), s.args...)
	if err != nil {
		return false, t.about(err, "write", key)
	}
	// The version always changes, so the count is one or zero even if the database does not count a
	// row that stays the same.
	n, err := r.RowsAffected()
	if err == nil && n == 0 {
		return true, t.about(errMoved, "write", key)
	}
	return false, err
}
