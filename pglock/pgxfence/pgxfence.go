// Package pgxfence is sqlfence's Fence and Writer for programs that use pgx and not database/sql
// for PostgreSQL. The table, the statement and the promises are sqlfence's:
//
//	g, err := pgxfence.New(nil)
//	err = g.EnsureTable(ctx, pool) // or put g.Schema() among your migrations
//
//	fence, err := g.With(ctx, pool, lease)
//	...read, think...
//	err = fence.Do(ctx, func(tx pgx.Tx) error {
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
	"github.com/hasplock/hasp/fencing/retry"
	"github.com/hasplock/hasp/fencing/sqlfence"
)

// DB is a *pgxpool.Pool or a *pgx.Conn.
type DB interface {
	Queryer
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
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

// EnsureTable creates the table if it does not exist. Programs without migrations call it once when
// they start. If the table exists, the role needs no right to create it.
func (g *Fence) EnsureTable(ctx context.Context, db DB) error {
	return retry.Do(ctx, g.sql.Tries(), func() (bool, error) {
		// CREATE TABLE IF NOT EXISTS asks for the right to create before it looks. If looking
		// fails for another reason, creating fails as well, and says why.
		if _, err := db.Exec(ctx, g.sql.LookSQL()); err == nil {
			return false, nil
		}
		_, err := db.Exec(ctx, g.Schema())
		return made(err) || again(err), g.sql.NotMade(err)
	})
}

// made reports whether another has created the table at the same moment: IF NOT EXISTS of
// PostgreSQL is no lock, so the second one fails in the catalog.
func made(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && (e.Code == "23505" || e.Code == "42P07" || e.Code == "42710")
}

// Writer writes into one database under one token. All methods may be called at once from many
// goroutines.
type Writer struct {
	fence *Fence
	db    DB
	name  string
	token uint64
}

// With makes the fence refuse every token smaller than the lease's, at the latest when it returns,
// and returns the Writer of this token. It waits for transactions under older tokens that have
// compared theirs, so what is read after With has all that they wrote. It returns a
// *fencing.StaleError if the fence has seen a greater token. After any other error the fence may
// have advanced: call With again with the same lease, or give the lease up.
func (g *Fence) With(ctx context.Context, db DB, lease fencing.Grant) (*Writer, error) {
	w := &Writer{fence: g, db: db, name: lease.Name(), token: lease.Token()}
	if err := fencing.Check(w.name, w.token); err != nil {
		return nil, err
	}
	err := retry.Do(ctx, g.sql.Tries(), func() (bool, error) {
		err := w.Check(ctx, db)
		return again(err), err
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// Check compares and raises the token inside a transaction of yours, and must be its first
// statement. It returns a *fencing.StaleError if the fence has seen a greater one. Roll back after
// any error.
func (w *Writer) Check(ctx context.Context, tx Queryer) error {
	var seen int64
	if err := tx.QueryRow(ctx, w.fence.sql.CheckSQL(), w.name, int64(w.token)).Scan(&seen); err != nil {
		return fmt.Errorf("compare token %d of lock %q: %w", w.token, w.name, err)
	}
	return fencing.Compare(w.name, w.token, uint64(seen))
}

// Do runs fn in a transaction and commits it, unless the fence has seen a greater token: then it
// returns a *fencing.StaleError and fn does not run. As with sqlfence, fn may run more than once:
// the transaction is run again after a deadlock or a serialization failure, until the tries are
// used up (fencing.ErrConflict).
func (w *Writer) Do(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return w.DoTx(ctx, pgx.TxOptions{}, fn)
}

// DoTx is Do with an isolation level.
func (w *Writer) DoTx(ctx context.Context, o pgx.TxOptions, fn func(tx pgx.Tx) error) error {
	return retry.Do(ctx, w.fence.sql.Tries(), func() (bool, error) {
		err := pgx.BeginTxFunc(ctx, w.db, o, func(tx pgx.Tx) error {
			if err := w.Check(ctx, tx); err != nil {
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
