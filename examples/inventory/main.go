// Command inventory takes articles out of a stock in PostgreSQL. The lock has one seller at a time
// read, think and write; the token has the database refuse one that was paused in between and
// has lost its lock.
//
//	export DATABASE_URL=postgres://user:password@localhost/shop
//	go run ./inventory -stock 20
//	go run ./inventory -take 3 & go run ./inventory -take 3 & wait
//
// If the new stock followed from the old one in SQL, a plain UPDATE would do, without any lock. A
// distributed lock is for thinking that takes longer than a transaction should, or that touches
// more than this database. docs/FENCING.md compares them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/examples/internal/store"
	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/pglock/pgxfence"
)

var stock = flag.Int("stock", 0, "make the table, and set the stock to this")
var take = flag.Int("take", 0, "articles to take, one after the other")

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	store.Exit(run(ctx))
}

func run(ctx context.Context) error {
	db, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer db.Close()
	table, err := pgxfence.New(nil)
	if err == nil {
		err = table.EnsureTable(ctx, db)
	}
	if err == nil && *stock > 0 {
		_, err = db.Exec(ctx, fmt.Sprintf(`
			CREATE TABLE IF NOT EXISTS inventory (item text PRIMARY KEY, stock int NOT NULL);
			INSERT INTO inventory VALUES ('widget', %d) ON CONFLICT (item) DO UPDATE SET stock = excluded.stock`, *stock))
	}
	if err != nil {
		return err
	}
	c, err := store.Open(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	for left := *take; left > 0 && err == nil; {
		// Stale is the one error that says for certain that nothing was written. After another
		// one (the lock was lost while the answer was under way) it may have been.
		if err = sell(ctx, c, db, table); err == nil {
			left--
		} else if errors.Is(err, fencing.ErrStale) {
			err = nil
		}
	}
	return err
}

func sell(ctx context.Context, c *hasp.Client, db *pgxpool.Pool, table *pgxfence.Fence) error {
	lease, err := c.Mutex("inventory/widget").Lock(ctx)
	if err != nil {
		return err
	}
	defer lease.Unlock()    // its outcome changes nothing: what was written under the token is written
	work := lease.Bind(ctx) // ends when the lock is lost, or when we are told to stop
	// Before reading: from here on no earlier holder can write below us.
	fence, err := table.With(work, db, lease)
	if err != nil {
		return err
	}
	var left int
	if err := db.QueryRow(work, `SELECT stock FROM inventory WHERE item = 'widget'`).Scan(&left); err != nil {
		return err
	}
	if left == 0 {
		return errors.New("sold out")
	}
	left-- // think; if we are paused here, the next line fails with fencing.ErrStale
	err = fence.Do(work, func(tx pgx.Tx) error {
		_, err := tx.Exec(work, `UPDATE inventory SET stock = $1 WHERE item = 'widget'`, left)
		return err
	})
	if err == nil {
		fmt.Printf("took one, %d left, token %d\n", left, lease.Token())
	}
	return err
}
