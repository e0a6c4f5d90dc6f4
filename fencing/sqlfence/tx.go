package sqlfence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
)

// ErrEnded: the transaction ended before fn returned. fn has continued after an error with which
// the database ends a transaction (a deadlock, a lock wait time-out), or has ended it by a
// statement: in MySQL also by any that commits implicitly, such as CREATE, ALTER, DROP, TRUNCATE,
// GRANT and LOCK TABLES. Everything before such a statement is committed, under the token; the
// statement itself was not fenced; everything after it is rolled back. Do does not run fn again.
//
// Do sees this only in MySQL. In PostgreSQL only a COMMIT or ROLLBACK that fn sends itself ends a
// transaction, and in SQLite little else (OR ROLLBACK, a full disk): do not send them. Statements
// after that are not fenced and are kept. SQLite's commit then fails; in PostgreSQL Do returns nil.
var ErrEnded = errors.New("the transaction had ended before the function returned")

// transact runs fn once.
func (g *Fence) transact(ctx context.Context, db *sql.DB, o *sql.TxOptions, fn func(tx *sql.Tx) error) error {
	switch g.dialect {
	case MySQL:
		return transactMySQL(ctx, db, o, fn)
	case SQLite:
		return transactSQLite(ctx, db, o, fn)
	}
	tx, err := db.BeginTx(ctx, o)
	if err != nil {
		return exhausted(err)
	}
	defer tx.Rollback() // even if fn panics; after Commit it does nothing
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// transactSQLite is transact for a database whose COMMIT is refused, and leaves the transaction
// open, if another connection reads meanwhile. database/sql takes that transaction for ended and
// gives the connection to the next caller, with what fn wrote and with the lock that keeps every
// other writer out. Today's drivers roll back themselves, others and older ones do not. So a
// ROLLBACK follows; it fails where there is no transaction any more.
func transactSQLite(ctx context.Context, db *sql.DB, o *sql.TxOptions, fn func(tx *sql.Tx) error) error {
	c, err := db.Conn(ctx)
	if err != nil {
		return exhausted(err)
	}
	defer c.Close()
	tx, err := c.BeginTx(ctx, o)
	if err != nil {
		return err
	}
	defer tx.Rollback() // even if fn panics; after Commit it does nothing
	if err := fn(tx); err != nil {
		return err
	}
	if err = tx.Commit(); err != nil {
		_, _ = c.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
	}
	return err
}

func exhausted(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w (is every connection of the pool in use?)", err)
	}
	return err
}

// transactMySQL is transact for a database where a transaction can end unnoticed: MySQL rolls all
// of it back with an error that fn may ignore, and commits it implicitly with some statements. In
// autocommit mode, the usual one, each later statement would be a separate transaction, without the
// lock of the name's row: a stale write. And a COMMIT without a transaction succeeds.
//
// So autocommit is off meanwhile: statements after such an end are in a transaction that only this
// function could commit. And a savepoint set at the beginning disappears with its transaction, so
// that releasing it before the commit fails. That is four statements more. MySQL has no function
// that says whether a transaction is open; each answer of the server does, but the client library
// does not expose it.
func transactMySQL(ctx context.Context, db *sql.DB, o *sql.TxOptions, fn func(tx *sql.Tx) error) error {
	c, err := db.Conn(ctx)
	if err != nil {
		return exhausted(err)
	}
	defer c.Close()
	// Assignments of one SET are made from left to right.
	if _, err := c.ExecContext(ctx, "SET @hasp_autocommit = @@session.autocommit, @@session.autocommit = 0"); err != nil {
		discard(c)
		return err
	}
	clean := false
	defer func() {
		// Setting autocommit again commits an open transaction: do it only after a rollback or
		// commit that was answered. Otherwise close the connection, and with it an open
		// transaction.
		if clean {
			_, err := c.ExecContext(ctx, "SET @@session.autocommit = @hasp_autocommit")
			clean = err == nil
		}
		if !clean {
			discard(c)
		}
	}()
	tx, err := c.BeginTx(ctx, o)
	if err != nil {
		return err
	}
	committed := false
	defer func() { // even if fn panics
		clean = committed || tx.Rollback() == nil
	}()
	if _, err := tx.ExecContext(ctx, "SAVEPOINT hasp_fence"); err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "RELEASE SAVEPOINT hasp_fence"); err != nil {
		if number(err) == 1305 { // there is no such savepoint
			err = fmt.Errorf("%w: %w", ErrEnded, err)
		}
		return err
	}
	err = tx.Commit()
	committed = err == nil
	return err
}

// discard closes a connection instead of returning it: the pool drops a connection that is reported
// bad.
func discard(c *sql.Conn) { _ = c.Raw(func(any) error { return driver.ErrBadConn }) }
