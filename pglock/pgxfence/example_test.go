//go:build unix

package pgxfence_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
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

// exampleURL is a server's; TestExample puts its own there.
var exampleURL = "postgres://postgres@127.0.0.1/postgres"

// The example needs a server, so go test cannot run it by itself: this does.
func TestExample(t *testing.T) {
	exampleURL = backends.SharedPostgres(t).URL()
	testkit.Prints(t, "second: <nil>\nfirst is stale: true\n", Example)
}
