// Command scheduler works on one machine at a time, elected in the PostgreSQL that it works on.
//
//	go run ./scheduler -store postgres://localhost/app -database postgres://localhost/app     # on each machine
//
// The table is a migration's: CREATE TABLE schedule (id text PRIMARY KEY, turns bigint, token
// bigint), with the row ('main', 0, 0). docs/LEADER.md explains the rest. What the leader writes carries the token of its term, and the row
// refuses a smaller one: a leader that was stopped for too long changes nothing when it goes on.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/examples/internal/store"
)

var (
	database = flag.String("database", "postgres://localhost/app", "URL of the database, as pgx takes it")
	name     = flag.String("name", "host-1", "what followers are shown")
	pause    = flag.Duration("every", time.Second, "pause between two turns of the work")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, *database)
	if err == nil {
		defer pool.Close()
		err = lead(ctx, pool, *pause)
	}
	if ctx.Err() == nil {
		store.Exit(err)
	}
}

func lead(ctx context.Context, pool *pgxpool.Pool, every time.Duration) error {
	c, err := store.Open(ctx) // hasp.Open(ctx, "postgres://localhost/app")
	if err != nil {
		return err
	}
	defer c.Close()
	// The function is called for each term that this process wins, until ctx ends. Its context ends
	// before the store may let another lead.
	return c.Election("scheduler").Run(ctx, []byte(*name), func(ctx context.Context, term *hasp.Term) error {
		fmt.Println("leading", *name, term.Token())
		for ctx.Err() == nil {
			// One statement does the work and compares the token: no pause fits in between.
			done, err := pool.Exec(ctx, `UPDATE schedule SET turns = turns + 1, token = $1 WHERE id = 'main' AND token <= $1`, int64(term.Token()))
			switch {
			case err != nil:
				fmt.Println("failed", err) // the database is away, or ctx has ended: the next turn does better
			case done.RowsAffected() == 0:
				fmt.Println("stale", term.Token()) // a later leader has written
				return nil
			}
			select {
			case <-ctx.Done():
			case <-time.After(every):
			}
		}
		return nil // and campaign again
	})
}
