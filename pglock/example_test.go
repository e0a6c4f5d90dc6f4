package pglock_test

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/pglock"
)

// The usual way: by URL. The package is imported for its schemes. Without sslmode the
// connection to another machine is encrypted and the server's certificate verified.
func Example() {
	ctx := context.Background()
	c, err := hasp.Open(ctx, exampleURL)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	lease, err := c.Mutex("orders/42").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("held:", lease.Held(), "with a token:", lease.Token() > 0)
	fmt.Println(lease.Release(ctx))
	// Prints:
	// held: true with a token: true
	// <nil>
}

// With a pool that the program has already, and the lock that golang-migrate's command takes,
// so that no migration runs meanwhile.
func ExampleOpen() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, exampleURL)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	b, err := pglock.New(ctx, pool, &pglock.Options{Strategy: pglock.StrategyAdvisory, Key: pglock.KeyMigrate})
	if err != nil {
		log.Fatal(err)
	}
	c, err := hasp.New(b)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	err = c.Do(ctx, "/app/public/schema_migrations", func(ctx context.Context) error {
		var held int
		err := pool.QueryRow(ctx, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 1726534663").Scan(&held)
		fmt.Println("advisory locks of that number:", held)
		return err
	})
	fmt.Println(err)
	// Prints:
	// advisory locks of that number: 1
	// <nil>
}

// exampleURL is a server's. tests/examples starts one for TestExamples.
var exampleURL = cmp.Or(os.Getenv("EXAMPLE_STORE"), "postgres://app:secret@localhost/app")

// Examples cannot be skipped where there is no server, tests can; hence no "Output:" above.
func TestExamples(t *testing.T) {
	if os.Getenv("EXAMPLE_STORE") == "" {
		t.Skip("tests/examples runs it")
	}
	Example()
	ExampleOpen()
}
