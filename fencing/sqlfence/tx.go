package sqlfence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
)

// ErrEnded: the transaction was over before fn returned. fn has gone on after an error with
// which the database ends a transaction (a deadlock, a lock that was waited for too long), or
// has ended it by a statement: in MySQL also by any that commits on its own, such as CREATE,
// ALTER, DROP, TRUNCATE, GRANT and LOCK TABLES. What came before such a statement is committed,
// under the token; the statement itself was not fenced; what came after is rolled back. Do
// does not run fn again.
//
// Do sees this in MySQL alone. In PostgreSQL nothing ends a transaction but a COMMIT or ROLLBACK
// that fn sends itself, and in SQLite little else (OR ROLLBACK, a full disk): do not. What comes
// after that is not fenced and is kept. SQLite's commit fails then; in PostgreSQL Do returns nil.
var ErrEnded = errors.New("the transaction had ended before the function returned")

// transact runs fn once.
func (g *Fence) transact(ctx context.Context, db *sql.DB, o *sql.TxOptions, fn func(tx *sql.Tx) error) error {
	if g.dialect == MySQL {
		return transactMySQL(ctx, db, o, fn)
	}
	tx, err := db.BeginTx(ctx, o)
	if err != nil {
		return exhausted(err)
	}
	defer tx.Rollback() // also if fn panics; after Commit it does nothing
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func exhausted(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w (is every connection of the pool in use?)", err)
	}
	return err
}

// transactMySQL is transact where a transaction can end and nobody is told: MySQL rolls back
// the whole of it with an error that fn may ignore, and commits it with a statement that fn may
// not think of. In autocommit mode, which is the usual one, each later statement would be a
// transaction of its own, without the lock of the name's row: a stale write. And COMMIT says
// yes to nothing.
//
// So autocommit is off meanwhile: what follows such an end is a transaction that only we could
// commit. And a savepoint from the beginning is gone with its transaction, which its release
// tells before the commit. That is four statements more. MySQL has no function that says
// whether a transaction is open, and the client library keeps to itself what each answer says
// of it.
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
		// Autocommit back on commits what is open: only after a rollback or commit that
		// was answered. Otherwise the connection is closed, and with it all that is open.
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
	defer func() { // also if fn panics
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

// discard closes a connection instead of giving it back: its pool drops one that its user calls
// bad.
func discard(c *sql.Conn) { _ = c.Raw(func(any) error { return driver.ErrBadConn }) }
