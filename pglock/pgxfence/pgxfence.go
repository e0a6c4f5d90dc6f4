// Package pgxfence is sqlfence.Fence.Do for programs that use pgx and not database/sql for
// PostgreSQL. The table, the statement and the promises are sqlfence's:
//
//	g, err := pgxfence.New(nil)
//	_, err = pool.Exec(ctx, g.Schema()) // or among your migrations
//
//	err = g.Advance(ctx, pool, lease.Name(), lease.Token())
//	...read, think...
//	err = g.Do(ctx, pool, lease.Name(), lease.Token(), func(tx pgx.Tx) error {
//		_, err := tx.Exec(ctx, "UPDATE orders SET state = 'paid' WHERE id = 42")
//		return err
//	})
package pgxfence

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/fencing/sqlfence"
	"github.com/hasplock/hasp/internal/retry"
)

// DB is a *pgxpool.Pool or a *pgx.Conn.
type DB interface {
	Queryer
	BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error)
}

// Queryer is a DB or a pgx.Tx.
type Queryer interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Fence compares tokens in one database. All methods may be called at once from many
// goroutines.
type Fence struct{ sql *sqlfence.Fence }

// New returns a fence. It sends nothing. o is sqlfence's; nil means the defaults.
func New(o *sqlfence.Options) (*Fence, error) {
	g, err := sqlfence.New(sqlfence.PostgreSQL, o)
	if err != nil {
		return nil, err
	}
	return &Fence{g}, nil
}

// Schema returns the statement that makes the table. It does nothing if the table is there.
func (g *Fence) Schema() string { return g.sql.Schema() }

// Advance makes the fence refuse every smaller token of the lock from now on. It waits for
// transactions under older tokens that have compared theirs. It returns a *fencing.StaleError if
// the fence has seen a greater token.
func (g *Fence) Advance(ctx context.Context, db DB, name string, token uint64) error {
	return retry.Do(ctx, g.sql.Tries(), func() (bool, error) {
		err := g.Check(ctx, db, name, token)
		return again(err), err
	})
}

// Check is Advance inside your transaction, and must be its first statement. Roll back after any
// error.
func (g *Fence) Check(ctx context.Context, tx Queryer, name string, token uint64) error {
	if err := fencing.Check(name, token); err != nil {
		return err
	}
	var seen int64
	if err := tx.QueryRow(ctx, g.sql.CheckSQL(), name, int64(token)).Scan(&seen); err != nil {
		return fmt.Errorf("compare token %d of lock %q: %w", token, name, err)
	}
	return fencing.Compare(name, token, uint64(seen))
}

// Do runs fn in a transaction and commits it, unless the fence has seen a greater token: then it
// returns a *fencing.StaleError and fn does not run. As with sqlfence, fn may run more than once:
// the transaction is run again after a deadlock or a serialization failure, until the tries are
// used up (fencing.ErrConflict).
func (g *Fence) Do(ctx context.Context, db DB, name string, token uint64, fn func(tx pgx.Tx) error) error {
	return g.DoTx(ctx, db, pgx.TxOptions{}, name, token, fn)
}

// DoTx is Do with an isolation level.
func (g *Fence) DoTx(ctx context.Context, db DB, o pgx.TxOptions, name string, token uint64, fn func(tx pgx.Tx) error) error {
	if err := fencing.Check(name, token); err != nil {
		return err
	}
	return retry.Do(ctx, g.sql.Tries(), func() (bool, error) {
		err := pgx.BeginTxFunc(ctx, db, o, func(tx pgx.Tx) error {
			if err := g.Check(ctx, tx, name, token); err != nil {
				return err
			}
			return fn(tx)
		})
		return again(err), err
	})
}

// again reports whether the server has rolled the transaction back because of a conflict with
// others.
func again(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && (e.Code == "40001" || e.Code == "40P01")
}
