//go:build unix

package pgxfence_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/fencing"
	_ "github.com/hasplock/hasp/pglock"
	"github.com/hasplock/hasp/pglock/pgxfence"
)

// Two holders, one after the other; the first one's late write is refused.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, exampleURL)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	c, err := hasp.Open(ctx, exampleURL)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	table, err := pgxfence.New(nil)
	if err == nil {
		err = table.EnsureTable(ctx, pool)
	}
	if err != nil {
		log.Fatal(err)
	}

	take := func() *pgxfence.Writer {
		lease, err := c.Mutex("orders/42").Lock(ctx)
		if err != nil {
			log.Fatal(err)
		}
		defer lease.Unlock()
		fence, err := table.With(ctx, pool, lease)
		if err != nil {
			log.Fatal(err)
		}
		return fence
	}
	pay := func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "CREATE TABLE IF NOT EXISTS paid (id int)")
		return err
	}
	first, second := take(), take()
	fmt.Println("second:", second.Do(ctx, pay))
	fmt.Println("first is stale:", errors.Is(first.Do(ctx, pay), fencing.ErrStale))
	// Prints:
	// second: <nil>
	// first is stale: true
}

// exampleURL is a server's. tests/examples starts one for TestExamples.
var exampleURL = cmp.Or(os.Getenv("EXAMPLE_STORE"), "postgres://app:secret@localhost/app")

// Examples cannot be skipped where there is no server, tests can; hence no "Output:" above.
func TestExamples(t *testing.T) {
	if os.Getenv("EXAMPLE_STORE") == "" {
		t.Skip("tests/examples runs it")
	}
	Example()
}
