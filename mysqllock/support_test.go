package mysqllock_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql" // for pool

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/handmade"
	_ "github.com/hasplock/hasp/mysqllock"
)

// T is the TTL of clients whose leases are to expire, lasting of those that must be renewed
// to last through a test, and calm of those whose leases are to last whatever else the
// machine does. slack is how long is waited for what must come: only a fault takes that long.
const (
	T       = 2 * time.Second
	lasting = 6 * time.Second
	calm    = 12 * time.Second
	slack   = 30 * time.Second
)

// otherServer is a server to run the tests on that are not about MariaDB: MySQL 8, say.
func otherServer() string { return os.Getenv("HASP_TEST_MYSQL_URL") }

// serverURL is MariaDB, or the server that HASP_TEST_MYSQL_URL names.
func serverURL(t testing.TB) string {
	if u := otherServer(); u != "" {
		return u
	}
	return storeURL(t, backends.SharedMariaDB(t))
}

// storeURL names a database of its own, which is not called like the user: the suite looks
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

// byHand is the control: a lock that somebody has written by hand, and still believes in.
func byHand(t testing.TB, db *sql.DB, name string) *handmade.Lease {
	t.Helper()
	return handmade.Hold(ctx(t), t, db, name, T)
}

// naiveGetLock is the control for locks that are bound to a connection: nobody looks at the
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

// number is the first column of the first row.
func number(t testing.TB, db *sql.DB, text string) (n int64) {
	t.Helper()
	if err := db.QueryRow(text).Scan(&n); err != nil {
		t.Fatalf("%.100s: %v", text, err)
	}
	return n
}

// status is one of the server's counters.
func status(t testing.TB, db *sql.DB, name string) (n int64) {
	t.Helper()
	if err := db.QueryRow("SHOW GLOBAL STATUS LIKE '"+name+"'").Scan(new(string), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// open opens a store by its URL, as hasp.Open does. The caller closes it.
func open(t testing.TB, storeURL string) driver.Backend {
	t.Helper()
	u, err := url.Parse(storeURL)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), slack)
	defer cancel()
	b, err := driver.Lookup(u.Scheme)(ctx, u)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func client(t testing.TB, storeURL string, opts ...hasp.Option) *hasp.Client {
	t.Helper()
	c, err := hasp.Open(context.Background(), storeURL, append([]hasp.Option{hasp.WithTTL(calm)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func ctx(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*slack)
	t.Cleanup(cancel)
	return ctx
}

func lock(t testing.TB, c *hasp.Client, name string) *hasp.Lease {
	t.Helper()
	l, err := c.Mutex(name).Lock(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func release(t testing.TB, l *hasp.Lease) {
	t.Helper()
	if err := l.Release(ctx(t)); err != nil {
		t.Fatal(err)
	}
}

// waiting starts to lock, and delivers the lease. The name has strategies that can tell who
// waits: the caller knows when it does.
func waiting(t testing.TB, c *hasp.Client, name string) <-chan *hasp.Lease {
	t.Helper()
	got, all := make(chan *hasp.Lease, 1), ctx(t)
	go func() {
		if l, err := c.Mutex(name).Lock(all); err == nil {
			got <- l
		} else {
			t.Logf("waiter: %v", err)
		}
		close(got)
	}()
	return got
}

// eventually waits for what must come.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(slack); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in vain waited %s for: %s", slack, what)
		}
	}
}

// param adds parameters to a URL.
func param(storeURL, params string) string {
	if strings.Contains(storeURL, "?") {
		return storeURL + "&" + params
	}
	return storeURL + "?" + params
}

// through leads a URL over another address.
func through(storeURL, addr string) string {
	u, err := url.Parse(storeURL)
	if err != nil {
		panic(err)
	}
	u.Host = addr
	return u.String()
}
