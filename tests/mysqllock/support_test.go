package mysqllock_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql" // for pool

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	_ "github.com/hasplock/hasp/mysqllock"
)

// T is the TTL of clients whose leases shall expire, calm of those whose leases shall last on a busy
// machine, and slack the time to wait for an event that must come.
const (
	T     = 2 * time.Second
	calm  = 20 * time.Second
	slack = testkit.Patience
)

// otherServer is a server to run the tests on that are not about MariaDB: MySQL 8, say.
func otherServer() string { return os.Getenv("HASP_TEST_MYSQL_URL") }

// storeURL names a separate database, which is not called like the user: the suite looks
// for the user's name in messages.
func storeURL(t testing.TB, m *backends.MariaDB) string {
	t.Helper()
	exec(t, admin(t, m), "CREATE DATABASE IF NOT EXISTS locks")
	return strings.TrimSuffix(m.URL(), m.Database) + "locks"
}

// admin is a pool past hasp, in the database of storeURL once that was called.
func admin(t testing.TB, m *backends.MariaDB) *sql.DB { return pool(t, m.Addr, m.User, m.Password, "") }

// poolAt is a pool of the locks' user, at the server or at a proxy before it.
func poolAt(t testing.TB, addr, database string) *sql.DB {
	return pool(t, addr, "hasp", "hasp", database)
}

// naiveGetLock is the control for locks that are bound to a connection: it does not look at the
// connection while it is held.
func naiveGetLock(t testing.TB, db *sql.DB, name string) {
	t.Helper()
	c, err := db.Conn(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	var got sql.NullInt64
	if err := c.QueryRowContext(ctx(t), "SELECT GET_LOCK('"+name+"', 30)").Scan(&got); err != nil || got.Int64 != 1 {
		t.Fatalf("the control cannot lock: %+v, %v", got, err)
	}
}

func pool(t testing.TB, addr, user, password, params string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", fmt.Sprintf("%s:%s@tcp(%s)/%s", user, password, addr, params))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func exec(t testing.TB, db interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}, text string) {
	t.Helper()
	if _, err := db.ExecContext(context.Background(), text); err != nil {
		t.Fatalf("%.100s: %v", text, err)
	}
}

// status is one of the server's counters.
func status(t testing.TB, db *sql.DB, name string) (n int64) {
	t.Helper()
	if err := db.QueryRow("SHOW GLOBAL STATUS LIKE '"+name+"'").Scan(new(string), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

func client(t testing.TB, storeURL string, opts ...hasp.Option) *hasp.Client {
	t.Helper()
	return testkit.Client(t, storeURL, append([]hasp.Option{hasp.WithTTL(calm)}, opts...)...)
}

func ctx(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*slack)
	t.Cleanup(cancel)
	return ctx
}

// param adds parameters to a URL.
func param(storeURL, params string) string {
	if strings.Contains(storeURL, "?") {
		return storeURL + "&" + params
	}
	return storeURL + "?" + params
}
