// Command moving is a job that moves from the advisory lock that it has always taken to a lock of
// hasp's, in a rolling update and without a gap.
//
//	go run ./moving -store postgres://localhost/app -database "postgres://localhost/app?sslmode=disable" -generation old|both|new
//
// Old processes take the old lock, the next generation takes the old one and in it the new one, and
// the last the new one alone. All that run at once share one of the two, as long as no old one runs
// beside a new one: wait until none is left before the first new one starts. docs/LEADER.md has it
// step by step.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/examples/internal/store"
)

var (
	database   = flag.String("database", "postgres://localhost/app?sslmode=disable", "URL of the database")
	generation = flag.String("generation", "both", "old, both or new")
	turn       = flag.Duration("turn", 100*time.Millisecond, "how long the job takes")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	fmt.Printf("%s runs\n", *generation)
	for ctx.Err() == nil {
		if err := once(ctx); err != nil && ctx.Err() == nil {
			store.Exit(err)
		}
	}
}

func once(ctx context.Context) error {
	switch *generation {
	case "old":
		return underOld(ctx, job)
	case "both":
		return underBoth(ctx, job)
	case "new":
		return underNew(ctx, job)
	}
	return errors.New("-generation is old, both or new")
}

// underOld does the job as the program did until now.
func underOld(ctx context.Context, job func(context.Context) error) error {
	conn, err := pgx.Connect(ctx, *database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(42)"); err != nil {
		return err
	}
	return job(ctx)
}

// underBoth takes the old lock through hasp, so that its loss ends the job as well.
func underBoth(ctx context.Context, job func(context.Context) error) error {
	oldLocks, err := hasp.Open(ctx, *database+"&strategy=advisory&key=integer")
	if err != nil {
		return err
	}
	defer oldLocks.Close()
	return oldLocks.Do(ctx, "42", func(ctx context.Context) error { return underNew(ctx, job) })
}

// underNew does it as from now on.
func underNew(ctx context.Context, job func(context.Context) error) error {
	locks, err := store.Open(ctx) // hasp.Open(ctx, "postgres://localhost/app")
	if err != nil {
		return err
	}
	defer locks.Close()
	return locks.Do(ctx, "report", job)
}

// job prints when it begins and ends. It runs to its end also if it is told to stop.
func job(context.Context) error {
	fmt.Printf("%s begins %d\n", *generation, os.Getpid())
	time.Sleep(*turn)
	fmt.Printf("%s ends %d\n", *generation, os.Getpid())
	return nil
}
