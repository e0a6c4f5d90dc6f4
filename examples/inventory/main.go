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
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/examples/internal/store"
	"github.com/hasplock/hasp/pglock/pgxfence"
)

var stock = flag.Int("stock", 0, "make the tables, and set the stock to this")
var take = flag.Int("take", 0, "articles to take, one after the other")

const schema = `CREATE TABLE IF NOT EXISTS inventory (item text PRIMARY KEY, stock int NOT NULL);
	INSERT INTO inventory VALUES ('widget', %d) ON CONFLICT (item) DO UPDATE SET stock = excluded.stock;`

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	store.Exit(run(ctx))
}

func run(ctx context.Context) error {
	c, err := store.Open(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	db, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer db.Close()
	table, err := pgxfence.New(nil)
	if err == nil && *stock > 0 {
		_, err = db.Exec(ctx, fmt.Sprintf(schema, *stock)+table.Schema())
	}
	// An error of Do wraps fencing.ErrStale if nothing was written for certain. After another one (the
	// lock was lost while the answer was under way) it may have been.
	for n := 0; n < *take && err == nil; n++ {
		err = c.Do(ctx, "inventory/widget", func(ctx context.Context) error { return sell(ctx, db, table) })
	}
	return err
}

// sell runs under the lock. ctx ends when that is lost, or when the program is told to stop.
func sell(ctx context.Context, db *pgxpool.Pool, table *pgxfence.Fence) error {
	lease, _ := hasp.LeaseFrom(ctx)
	// Before reading: from here on no earlier holder can write below us.
	fence, err := table.With(ctx, db, lease)
	if err != nil {
		return err
	}
	var left int
	err = db.QueryRow(ctx, `SELECT stock FROM inventory WHERE item = 'widget' AND stock > 0`).Scan(&left)
	if err != nil {
		return fmt.Errorf("sold out? %w", err)
	}
	left-- // think; if we are paused here, the next line fails with fencing.ErrStale
	err = fence.Do(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE inventory SET stock = $1 WHERE item = 'widget'`, left)
		return err
	})
	if err == nil {
		fmt.Printf("took one, %d left, token %d\n", left, lease.Token())
	}
	return err
}
