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

	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/pglock/pgxfence"
)

// The tokens are those of leases, as lease.Token() gives them.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, exampleURL)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	g, err := pgxfence.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := pool.Exec(ctx, g.Schema()); err != nil {
		log.Fatal(err)
	}
	for _, token := range []uint64{88, 87} {
		err := g.Do(ctx, pool, "orders/42", token, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "CREATE TABLE IF NOT EXISTS paid (id int)")
			return err
		})
		fmt.Println(token, "stale:", errors.Is(err, fencing.ErrStale))
	}
	// Prints:
	// 88 stale: false
	// 87 stale: true
}

// exampleURL is a server's; TestExample puts its own there.
var exampleURL = "postgres://postgres@127.0.0.1/postgres"

// The example needs a server, so go test cannot run it by itself: this does.
func TestExample(t *testing.T) {
	exampleURL = backends.SharedPostgres(t).URL()
	testkit.Prints(t, "88 stale: false\n87 stale: true\n", Example)
}
