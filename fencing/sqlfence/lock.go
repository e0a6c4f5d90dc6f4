package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/hasplock/hasp/fencing"
)

// Wait says what Lock does about a row that another transaction has locked. A positive value bounds
// the wait: at least a millisecond in PostgreSQL, whole seconds in MySQL.
type Wait time.Duration

// The other ways to wait.
const (
	Forever    Wait = 0  // until the row is free, or as the context or the database allow
	NoWait     Wait = -1 // ErrLocked at once. In PostgreSQL the transaction is then over
	SkipLocked Wait = -2 // ErrLocked at once, and the transaction continues
)

var errUnsupported = fmt.Errorf("%w: SQLite locks the whole database and no rows; Modify, Row.Set and Writer.Do are for SQLite", fencing.ErrInvalid)

// Lock locks the row that key finds until tx ends (SELECT ... FOR UPDATE) and scans columns of it,
// whose values stay until tx writes them. It returns ErrNotFound if there is no such row and
// ErrLocked if it gave up waiting as w says.
//
// Read the row by this call and not before it: at REPEATABLE READ a MySQL transaction still sees
// its first snapshot, even under the lock, and PostgreSQL refuses the lock.
//
// Transactions that lock several rows should do so in the same order everywhere, by ascending key
// say, and within Fence.Transact, which begins again after a deadlock.
//
// To take any of several rows, the jobs of a queue say, select candidates by any condition without
// locking, then Lock them one by one with SkipLocked until one answers, and look at the condition
// again in what it scanned.
//
// A bound on the wait costs two statements more: it is set for this lock and then restored.
func (t *Table) Lock(ctx context.Context, tx *sql.Tx, w Wait, columns Columns, key ...any) error {
	if t.fence.dialect == SQLite {
		return errUnsupported
	}
	if err := t.check(columns, key); err != nil {
		return err
	}
	if w > 0 {
		restore, err := t.bound(ctx, tx, time.Duration(w))
		if err != nil {
			return err
		}
		err = t.lock(ctx, tx, w, columns, key)
		if err != nil && t.fence.dialect == PostgreSQL {
			return err // the transaction has ended, and the setting with it
		}
		return errors.Join(err, restore())
	}
	return t.lock(ctx, tx, w, columns, key)
}

func (t *Table) lock(ctx context.Context, tx *sql.Tx, w Wait, columns Columns, key []any) error {
	what, into := t.fence.dialect.list(columns.names()), columns.values()
	if len(into) == 0 {
		what, into = "1", []any{new(int)}
	}
	s := t.statement().add("SELECT ", what, " FROM ", t.from())
	t.where(s, key)
	s.add(" FOR UPDATE")
	switch w {
	case NoWait:
		s.add(" NOWAIT")
	case SkipLocked:
		s.add(" SKIP LOCKED")
	}
	err := tx.QueryRowContext(ctx, s.String(), s.args...).Scan(into...)
	switch {
	case errors.Is(err, sql.ErrNoRows) && w == SkipLocked:
		err = t.skipped(ctx, tx, key)
	case errors.Is(err, sql.ErrNoRows):
		err = ErrNotFound
	case notNow(err):
		err = fmt.Errorf("%w: %w", ErrLocked, err)
	}
	if err != nil {
		return t.about(err, "lock", key)
	}
	return nil
}

// skipped says why SKIP LOCKED found nothing: both reasons give the same answer. The row may have
// come or gone in between, as it may between two calls.
func (t *Table) skipped(ctx context.Context, tx *sql.Tx, key []any) error {
	s := t.statement().add("SELECT 1 FROM ", t.from())
	t.where(s, key)
	err := tx.QueryRowContext(ctx, s.String(), s.args...).Scan(new(int))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return ErrNotFound
	case err != nil:
		return err
	}
	return ErrLocked
}

// bound sets how long the next statements wait for a row, and returns a function that restores it.
// It uses the database's own limit and not a deadline of the context: at a deadline a driver closes
// the connection, and with it the transaction.
func (t *Table) bound(ctx context.Context, tx *sql.Tx, d time.Duration) (restore func() error, err error) {
	unit, set, reset := time.Millisecond,
		"SELECT set_config('hasp.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', '%d', true)",
		"SELECT set_config('lock_timeout', current_setting('hasp.lock_timeout'), true)"
	if t.fence.dialect == MySQL {
		// Assignments of one SET are made from left to right.
		unit, set, reset = time.Second,
			"SET @hasp_lock_wait = @@session.innodb_lock_wait_timeout, @@session.innodb_lock_wait_timeout = %d",
			"SET @@session.innodb_lock_wait_timeout = @hasp_lock_wait"
	}
	if d%unit != 0 || d/unit > 1<<30 {
		return nil, fmt.Errorf("%w: %s waits for a lock in units of %s, at most %d of them, not for %s", fencing.ErrInvalid, t.fence.dialect, unit, 1<<30, d)
	}
	if _, err := tx.ExecContext(ctx, fmt.Sprintf(set, d/unit)); err != nil {
		return nil, fmt.Errorf("bound the wait for a row of %s: %w", t.name, err)
	}
	return func() error {
		if _, err := tx.ExecContext(ctx, reset); err != nil {
			return fmt.Errorf("put the wait for rows back: %w; roll back", err)
		}
		return nil
	}, nil
}
