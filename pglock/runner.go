package pglock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// runner runs statements: a pool, a connection or a transaction, of pgx or of
// database/sql. The statements are ours and their arguments plain (strings, int64, bool,
// []byte), so that every library sends them the same.
type runner interface {
	// each runs a statement and calls one for each row of its answer, of which there are so
	// many, or any number.
	each(ctx context.Context, stmt string, args []any, rows int, one func(scan func(into ...any) error) error) error
	// script runs statements without arguments or answer, in one transaction.
	script(ctx context.Context, text string) error
	// atomically runs do in one transaction, at READ COMMITTED.
	atomically(ctx context.Context, do func(runner) error) error
}

const anyNumber = -1

// errMixedUp is for an answer that cannot be that of our statement: it has other columns,
// or another number of rows. Poolers have mixed answers up (pgbouncer issue 141 reports
// such, and one of our clients got an empty answer through PgBouncer 1.18), and then each later
// answer is that of the request before: the connection must not be used again.
var errMixedUp = errors.New("the server's answer is not one to our request: a pooler in between must have mixed up two clients")

// echo is a destination of Scan that accepts one value only: the one that the request has sent,
// by which its answer is known. The answers of the functions that say whether a lock is held have one;
// that of the server's own pg_advisory functions, have none.
type echo string

// Scan implements sql.Scanner.
func (e echo) Scan(v any) error {
	if got, ok := v.(string); ok && got == string(e) {
		return nil
	}
	if got, ok := v.([]byte); ok && string(got) == string(e) {
		return nil
	}
	return fmt.Errorf("it is for %v, and ours was for %s", v, string(e))
}

// repeatMixedUp asks again, by another connection, where the answer was not to the request.
func repeatMixedUp(ask func() error) error {
	err := ask()
	for again := 0; again < 2 && errors.Is(err, errMixedUp); again++ {
		err = ask()
	}
	return err
}

// one runs a statement that answers with exactly one row.
func one(ctx context.Context, r runner, stmt string, args []any, into ...any) error {
	return r.each(ctx, stmt, args, 1, func(scan func(...any) error) error { return scan(into...) })
}

// eachRow goes through an answer of either library.
func eachRow(answer interface {
	Next() bool
	Scan(into ...any) error
	Err() error
}, rows int, one func(func(...any) error) error) error {
	n := 0
	for ; answer.Next(); n++ {
		if err := one(answer.Scan); err != nil {
			return fmt.Errorf("%w: %w", errMixedUp, err)
		}
	}
	if err := answer.Err(); err != nil {
		return err
	}
	if rows != anyNumber && n != rows {
		return fmt.Errorf("%w: it has %d rows", errMixedUp, n)
	}
	return nil
}

// level says how statements are sent where the isolation is not ours to set, on a pool of the
// user's and behind a pooler: by themselves, until one of our functions complains that the
// default is above READ COMMITTED; from then on each in a transaction that says so. That
// is three round trips instead of one. The default may be changed at any time, for a role or a
// database, so that asking for it once, at Open, would not do. nil: inside of such a transaction.
type level struct{ above atomic.Bool }

// run sends a statement, and again if it was refused for the isolation: it has done nothing then.
func (l *level) run(plain, inTransaction func() error) error {
	if l == nil {
		return plain()
	}
	if !l.above.Load() {
		err := plain()
		if sqlState(err) != aboveReadCommitted {
			return err
		}
		l.above.Store(true)
	}
	return inTransaction()
}

// pgxQuerier is a *pgxpool.Pool, a *pgx.Conn or a pgx.Tx.
type pgxQuerier interface {
	Query(ctx context.Context, stmt string, args ...any) (pgx.Rows, error)
	Exec(ctx context.Context, stmt string, args ...any) (pgconn.CommandTag, error)
}

type pgxRunner struct {
	on    pgxQuerier
	mode  pgx.QueryExecMode
	level *level
}

// plainly is for the few statements that examine the server: any isolation does, and nothing is
// prepared.
func plainly(conn *pgx.Conn) pgxRunner { return pgxRunner{on: conn, mode: pgx.QueryExecModeExec} }

func (r pgxRunner) each(ctx context.Context, stmt string, args []any, rows int, one func(func(...any) error) error) error {
	return r.level.run(
		func() error { return r.query(ctx, stmt, args, rows, one) },
		func() error {
			return r.atomically(ctx, func(tx runner) error { return tx.each(ctx, stmt, args, rows, one) })
		})
}

func (r pgxRunner) query(ctx context.Context, stmt string, args []any, rows int, one func(func(...any) error) error) error {
	all := make([]any, 0, 12) // enter has eleven
	answer, err := r.on.Query(ctx, stmt, append(append(all, r.mode), args...)...)
	if err != nil {
		return err
	}
	defer answer.Close()
	socket := answer.Conn().PgConn().Conn()
	err = eachRow(answer, rows, one)
	if errors.Is(err, errMixedUp) {
		// By its socket: a pool has the connection back by now, and the next user finds it
		// broken, before or after sending. Either is asked again.
		_ = socket.Close()
	}
	return err
}

func (r pgxRunner) script(ctx context.Context, text string) error {
	_, err := r.on.Exec(ctx, text, pgx.QueryExecModeSimpleProtocol)
	return err
}

// begin begins a transaction. A client may be stopped, or its machine vanish, between two of its
// statements, with the lock of a name: renewals of those that hold the name wait for that. So the
// server ends such a transaction after a time in which a renewal of the default TTL can still be
// repeated. The client finds its connection broken, and asks again. (By database/sql it would be a
// round trip more for each request.)
const begin = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = '2s'"

func (r pgxRunner) atomically(ctx context.Context, do func(runner) error) error {
	db, ok := r.on.(interface {
		BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error)
	})
	if !ok {
		return fmt.Errorf("%T cannot begin a transaction", r.on)
	}
	return pgx.BeginTxFunc(ctx, db, pgx.TxOptions{BeginQuery: begin}, func(tx pgx.Tx) error {
		return do(pgxRunner{on: tx, mode: r.mode})
	})
}

// sqlRunner is a *sql.DB, a *sql.Conn or a *sql.Tx.
type sqlRunner struct {
	on interface {
		QueryContext(ctx context.Context, stmt string, args ...any) (*sql.Rows, error)
		ExecContext(ctx context.Context, stmt string, args ...any) (sql.Result, error)
	}
	level *level
}

func (r sqlRunner) each(ctx context.Context, stmt string, args []any, rows int, one func(func(...any) error) error) error {
	return r.level.run(
		func() error { return r.query(ctx, stmt, args, rows, one) },
		func() error {
			return r.atomically(ctx, func(tx runner) error { return tx.each(ctx, stmt, args, rows, one) })
		})
}

func (r sqlRunner) query(ctx context.Context, stmt string, args []any, rows int, one func(func(...any) error) error) error {
	answer, err := r.on.QueryContext(ctx, stmt, args...)
	if err != nil {
		return err
	}
	defer answer.Close()
	return eachRow(answer, rows, one)
}

func (r sqlRunner) script(ctx context.Context, text string) error {
	_, err := r.on.ExecContext(ctx, text)
	return err
}

func (r sqlRunner) atomically(ctx context.Context, do func(runner) error) error {
	db, ok := r.on.(interface {
		BeginTx(ctx context.Context, o *sql.TxOptions) (*sql.Tx, error)
	})
	if !ok {
		return fmt.Errorf("%T cannot begin a transaction", r.on)
	}
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer tx.Rollback() // after Commit it does nothing
	if err := do(sqlRunner{on: tx}); err != nil {
		return err
	}
	return tx.Commit()
}
