package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	_ "modernc.org/sqlite"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/fencing/sqlfence"
	"github.com/hasplock/hasp/memlock"
)

// orders is a database with one row.
func orders(ctx context.Context) (*sql.DB, error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // each connection to :memory: is a separate database
	_, err = db.ExecContext(ctx, "CREATE TABLE orders (id integer PRIMARY KEY, state text, stock integer, version integer); INSERT INTO orders VALUES (42, 'new', 3, 0)")
	return db, err
}

// Two holders, one after the other; the first one's late transaction is refused.
func Example() {
	ctx := context.Background()
	db, err := orders(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	g, err := sqlfence.New(sqlfence.SQLite, nil)
	if err == nil {
		err = g.EnsureTable(ctx, db)
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	locks, err := hasp.New(memlock.New().Backend())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close()
	take := func() *sqlfence.Writer {
		lease, err := locks.Mutex("orders/42").Lock(ctx)
		if err != nil {
			fmt.Println(err)
			return nil
		}
		defer lease.Unlock()
		fence, err := g.With(ctx, db, lease) // first, before anything is read
		if err != nil {
			fmt.Println(err)
		}
		return fence
	}
	set := func(fence *sqlfence.Writer, state string) error {
		return fence.Do(ctx, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE orders SET state = ? WHERE id = 42", state)
			return err
		})
	}
	first, second := take(), take()
	fmt.Println(set(second, "paid"))
	fmt.Println(errors.Is(set(first, "cancelled"), fencing.ErrStale))
	var state string
	err = db.QueryRowContext(ctx, "SELECT state FROM orders WHERE id = 42").Scan(&state)
	fmt.Println(state, err)
	// Output:
	// <nil>
	// true
	// paid <nil>
}

// No lock at all: the optimistic scheme.
func ExampleTable_Modify() {
	ctx := context.Background()
	db, err := orders(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	g, err := sqlfence.New(sqlfence.SQLite, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	table, err := g.Table(ctx, db, "orders", "id")
	if err != nil {
		fmt.Println(err)
		return
	}
	var stock int
	err = table.Modify(ctx, db, "version", sqlfence.Columns{"stock": &stock}, func() error {
		stock--
		return nil
	}, 42)
	fmt.Println(stock, err)
	_, err = g.Table(ctx, db, "orders", "state")
	fmt.Println(errors.Is(err, sqlfence.ErrNoIndex))
	// Output:
	// 2 <nil>
	// true
}
