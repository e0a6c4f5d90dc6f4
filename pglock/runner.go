package pglock

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// runner runs statements: a pool, a connection or a transaction, of pgx or of
// database/sql. The statements are ours and their arguments plain (strings, int64, bool,
// []byte), so that every library sends them the same.
type runner interface {
	// each runs a statement and calls one for each row of its answer.
	each(ctx context.Context, stmt string, args []any, one func(scan func(into ...any) error) error) error
	// script runs statements without arguments or answer, in one transaction.
	script(ctx context.Context, text string) error
	// atomically runs do in one transaction.
	atomically(ctx context.Context, do func(runner) error) error
}

// one runs a statement that answers with exactly one row.
func one(ctx context.Context, r runner, stmt string, args []any, into ...any) error {
	rows := 0
	err := r.each(ctx, stmt, args, func(scan func(...any) error) error {
		rows++
		return scan(into...)
	})
	if err == nil && rows != 1 {
		err = fmt.Errorf("%d rows where there is always one", rows)
	}
	return err
}

// eachRow goes through an answer of either library.
func eachRow(rows interface {
	Next() bool
	Scan(into ...any) error
	Err() error
}, one func(func(...any) error) error) error {
	for rows.Next() {
		if err := one(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// pgxRunner is a *pgxpool.Pool, a *pgx.Conn or a pgx.Tx.
type pgxRunner struct {
	on interface {
		Query(ctx context.Context, stmt string, args ...any) (pgx.Rows, error)
		Exec(ctx context.Context, stmt string, args ...any) (pgconn.CommandTag, error)
		Begin(ctx context.Context) (pgx.Tx, error)
	}
	mode pgx.QueryExecMode
}

func (r pgxRunner) each(ctx context.Context, stmt string, args []any, one func(func(...any) error) error) error {
	all := make([]any, 0, 12) // enter has eleven
	rows, err := r.on.Query(ctx, stmt, append(append(all, r.mode), args...)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	return eachRow(rows, one)
}

func (r pgxRunner) script(ctx context.Context, text string) error {
	_, err := r.on.Exec(ctx, text, pgx.QueryExecModeSimpleProtocol)
	return err
}

func (r pgxRunner) atomically(ctx context.Context, do func(runner) error) error {
	return pgx.BeginFunc(ctx, r.on, func(tx pgx.Tx) error { return do(pgxRunner{tx, r.mode}) })
}

// sqlRunner is a *sql.DB, a *sql.Conn or a *sql.Tx.
type sqlRunner struct {
	on interface {
		QueryContext(ctx context.Context, stmt string, args ...any) (*sql.Rows, error)
		ExecContext(ctx context.Context, stmt string, args ...any) (sql.Result, error)
	}
}

func (r sqlRunner) each(ctx context.Context, stmt string, args []any, one func(func(...any) error) error) error {
	rows, err := r.on.QueryContext(ctx, stmt, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	return eachRow(rows, one)
}

func (r sqlRunner) script(ctx context.Context, text string) error {
	_, err := r.on.ExecContext(ctx, text)
	return err
}

func (r sqlRunner) atomically(ctx context.Context, do func(runner) error) error {
	db, ok := r.on.(*sql.DB)
	if !ok {
		return fmt.Errorf("%T begins no transaction of its own", r.on)
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // after Commit it does nothing
	if err := do(sqlRunner{tx}); err != nil {
		return err
	}
	return tx.Commit()
}
