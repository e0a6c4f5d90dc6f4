package mysqllock_test

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/mysqllock"
)

// The usual way: by URL. The package is imported for its schemes.
func Example() {
	ctx := context.Background()
	c, err := hasp.Open(ctx, exampleURL)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	err = c.Do(ctx, "nightly-report", func(ctx context.Context) error {
		fmt.Println("this is the only one")
		return nil
	})
	fmt.Println("released:", err)
}

// On a pool that the program has already, with a separate prefix.
func ExampleOpen() {
	ctx := context.Background()
	db, err := sql.Open("mysql", exampleDSN)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close() // hasp does not

	b, err := mysqllock.New(db, &mysqllock.Options{Prefix: "billing_"})
	if err != nil {
		fmt.Println(err)
		return
	}
	c, err := hasp.New(b)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	lease, err := c.Semaphore("exports", 3).Acquire(ctx, 2)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("two of three permits:", lease.Held())
	fmt.Println(lease.Release(ctx))
}

// A GET_LOCK under the very name that another program uses.
func ExampleOpen_plainNames() {
	ctx := context.Background()
	db, err := sql.Open("mysql", exampleDSN)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	b, err := mysqllock.New(db, &mysqllock.Options{Strategy: mysqllock.StrategyGetLock, PlainNames: true, NoFence: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	c, err := hasp.New(b)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	lease, err := c.Mutex("8034217523").Lock(ctx) // as a migration tool calls it
	if err != nil {
		fmt.Println(err)
		return
	}
	free := true
	if err := db.QueryRow("SELECT IS_FREE_LOCK('8034217523')").Scan(&free); err != nil {
		fmt.Println(err)
	}
	fmt.Println("free for others:", free)
	fmt.Println(lease.Release(ctx))
}

// What an administrator reviews and applies, where programs may not create tables.
func ExampleOpen_schema() {
	db, err := sql.Open("mysql", exampleDSN)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	b, err := mysqllock.New(db, &mysqllock.Options{NoMigrate: true, Prefix: "app_"})
	if err != nil {
		fmt.Println(err)
		return
	}
	for line := range strings.Lines(b.(driver.Migrator).Schema()) {
		if strings.HasPrefix(line, "CREATE TABLE") {
			fmt.Print(line)
		}
	}
}

// exampleURL is a server's. tests/examples starts one for TestExamples. The password of yours would be
// in MYSQL_PWD.
var exampleURL = cmp.Or(os.Getenv("EXAMPLE_STORE"), "mysql://app:secret@127.0.0.1:3306/app")

// exampleDSN is the same server in the words of the client library.
var exampleDSN = regexp.MustCompile(`^mysql://(.*)@(.*)/`).ReplaceAllString(exampleURL, "$1@tcp($2)/")

// Examples cannot be skipped where there is no server, tests can; hence no "Output:" above.
func TestExamples(t *testing.T) {
	if os.Getenv("EXAMPLE_STORE") == "" {
		t.Skip("tests/examples runs it")
	}
	Example()
	ExampleOpen()
	ExampleOpen_plainNames()
	ExampleOpen_schema()
}
