package sqlfence

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/fencing/retry"
)

// Writer writes into one database under one token. All methods may be called at once from many
// goroutines.
type Writer struct {
	fence *Fence
	db    *sql.DB
	name  string
	token uint64
}

// With makes the fence refuse every token smaller than the lease's, at the latest when it returns,
// and returns the Writer of this token. It waits for transactions under older tokens that have
// compared theirs, so what is read after With has all that they wrote. It returns a
// *fencing.StaleError if the fence has seen a greater token.
//
// After any other error (the answer was lost, say) the fence may have advanced. That refuses only
// older holders: call With again with the same lease, or give the lease up.
func (g *Fence) With(ctx context.Context, db *sql.DB, lease fencing.Grant) (*Writer, error) {
	w := &Writer{fence: g, db: db, name: lease.Name(), token: lease.Token()}
	if err := fencing.Check(w.name, w.token); err != nil {
		return nil, err
	}
	err := retry.Do(ctx, g.tries, func() (bool, error) {
		err := w.Check(ctx, db)
		return again(err), err
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// Check compares and raises the token inside a transaction of yours, and must be its first
// statement (see the package comment). It returns a *fencing.StaleError if the fence has seen a
// greater one. Roll back after any error, also of later statements: after a deadlock MySQL has
// ended the transaction, and commits each later statement by itself. Do handles that.
func (w *Writer) Check(ctx context.Context, tx Queryer) error {
	seen, err := w.raise(ctx, tx)
	if err != nil {
		return fmt.Errorf("compare token %d of lock %q in table %s: %w", w.token, w.name, w.fence.table, err)
	}
	return fencing.Compare(w.name, w.token, uint64(seen))
}

func (w *Writer) raise(ctx context.Context, tx Queryer) (seen int64, err error) {
	token := int64(w.token)
	if w.fence.dialect != MySQL {
		err = tx.QueryRowContext(ctx, w.fence.check, w.name, token).Scan(&seen)
		return seen, err
	}
	// As bytes: a string would be converted from the connection's character set.
	r, err := tx.ExecContext(ctx, w.fence.check, []byte(w.name), token, token)
	if err != nil {
		return 0, err
	}
	if seen, err = r.LastInsertId(); err == nil && seen == 0 {
		seen = token // a new row: nothing was compared
	}
	return seen, err
}

// Do runs fn in a transaction and commits it, unless the fence has seen a greater token: then it
// returns a *fencing.StaleError and fn does not run. All that fn writes through tx is written under
// the token or not at all.
//
// The whole transaction is run again if the database rolls it back because of a conflict (a
// deadlock, a serialization failure), so fn may run more than once. After Options.Tries tries Do
// returns an error wrapping fencing.ErrConflict. Any other error of fn rolls back and is returned
// as it is. An error of the commit itself may leave the outcome unknown, as always.
//
// fn must return the errors of its statements: some of them say that the database has ended the
// transaction. If fn continues after such an error, or executes a statement that ends the
// transaction, Do fails in MySQL, and nothing after that end is kept. See ErrEnded, also for the
// cases that Do cannot see.
func (w *Writer) Do(ctx context.Context, fn func(tx *sql.Tx) error) error {
	return w.DoTx(ctx, nil, fn)
}

// DoTx is Do with an isolation level.
func (w *Writer) DoTx(ctx context.Context, o *sql.TxOptions, fn func(tx *sql.Tx) error) error {
	return w.fence.Transact(ctx, w.db, o, func(tx *sql.Tx) error {
		// With has advanced already. Comparing once more here, and first, makes comparing and
		// writing one step; and raising makes the fence whole again if the database has gone
		// back since, by a failover or a restored backup.
		if err := w.Check(ctx, tx); err != nil {
			return err
		}
		return fn(tx)
	})
}
