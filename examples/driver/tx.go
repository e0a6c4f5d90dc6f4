package sqlitelock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/hasplock/hasp/driver"
)

// now is the store's clock in milliseconds. It is read by statements of a write transaction, that
// is after those of all other processes have ended: who renews and who deletes what has expired
// see it one after the other. Read outside, it would admit a waiter beside a holder whose renewal
// is about to commit.
const now = `CAST(unixepoch('subsec') * 1000 AS INTEGER)`

// until is the ttl as the store counts it. Both ends of it are cut to milliseconds, so one more
// makes it no shorter than what was promised.
func until(ttl time.Duration) int64 { return ttl.Milliseconds() + 1 }

// write runs fn in a write transaction. SQLITE_BUSY on its first statement says that another
// process is writing and that nothing was done here, so it is tried again. No later statement
// can meet it: a transaction that has begun is the only writer.
func (b *backend) write(ctx context.Context, fn func(*sql.Tx) error) error {
	select {
	case b.turn <- struct{}{}:
		defer func() { <-b.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	tx, err := b.db.BeginTx(ctx, nil)
	for code(err) == sqlite3.SQLITE_BUSY && ctx.Err() == nil {
		tx, err = b.db.BeginTx(ctx, nil)
	}
	if err != nil {
		return refine(ctx, err)
	}
	if err := fn(tx); err != nil {
		// If ctx has ended, database/sql rolls back too. The connection is not used again before.
		_ = tx.Rollback()
		return refine(ctx, err)
	}
	return refine(ctx, tx.Commit())
}

// change runs one statement in a transaction. ErrGone: it has changed no row.
func (b *backend) change(ctx context.Context, statement string, args ...any) error {
	return b.write(ctx, func(tx *sql.Tx) error { return exec(ctx, tx, statement, args...) })
}

func exec(ctx context.Context, tx *sql.Tx, statement string, args ...any) error {
	result, err := tx.ExecContext(ctx, statement, args...)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n > 0 {
		return err
	}
	return driver.ErrGone
}

// current deletes what has expired under a name and reads the first entries that are left, all if
// limit is 0. It compares each row with the clock once: a row that has expired must not be renewed
// after the clock has been set back.
func current(ctx context.Context, tx *sql.Tx, name string, limit int) (queue []driver.Entry, err error) {
	if _, err := tx.ExecContext(ctx, `DELETE FROM hasp_entries WHERE name = ? AND expires <= `+now, name); err != nil {
		return nil, err
	}
	if limit == 0 {
		limit = -1 // SQLite's word for all
	}
	rows, err := tx.QueryContext(ctx, `SELECT seq, id, session, units, capacity, owner, since, value
		FROM hasp_entries WHERE name = ? ORDER BY seq LIMIT ?`, name, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		e, since := driver.Entry{Request: driver.Request{Name: name}}, int64(0)
		if err := rows.Scan(&e.Seq, &e.ID, &e.Session, &e.Units, &e.Capacity, &e.Owner, &since, &e.Value); err != nil {
			return nil, err
		}
		e.Since = time.Unix(0, since)
		queue = append(queue, e)
	}
	return queue, rows.Err()
}

// refine says in the contract's terms what has gone wrong. What it does not know stays as it is,
// and means "unknown": the core asks again.
func refine(ctx context.Context, err error) error {
	if err == nil || errors.Is(err, driver.ErrGone) {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err() // SQLite says "interrupted"
	}
	switch code(err) {
	case sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN:
		return fmt.Errorf("%w: %w", driver.ErrRefused, err) // may pass: space, permissions
	case sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT:
		return fmt.Errorf("%w, %w: %w", driver.ErrRefused, driver.ErrInvalid, err) // will not
	}
	return err
}

// code is SQLite's, without the details of an extended one; 0 for an error that is not SQLite's.
func code(err error) int {
	if e := (*sqlite.Error)(nil); errors.As(err, &e) {
		return e.Code() & 0xff
	}
	return 0
}
