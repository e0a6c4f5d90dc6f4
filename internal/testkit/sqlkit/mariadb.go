package sqlkit

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
)

// OtherMySQL is the store URL of a server to run the tests on that are not about MariaDB: MySQL 8,
// say. "": there is none.
func OtherMySQL() string { return os.Getenv("HASP_TEST_MYSQL_URL") }

// MariaDBStore names a separate database, which is not called like the user: the suite looks for
// the user's name in messages.
func MariaDBStore(t testing.TB, m *backends.MariaDB) string {
	t.Helper()
	Exec(t, MariaDBAdmin(t, m), "CREATE DATABASE IF NOT EXISTS locks")
	return strings.TrimSuffix(m.URL(), m.Database) + "locks"
}

// MariaDBAdmin is a pool beside hasp, without a database.
func MariaDBAdmin(t testing.TB, m *backends.MariaDB) *sql.DB {
	return MySQL(t, m.Addr, m.User, m.Password, "")
}

// MariaDBAt is a pool of the locks' user, at the server or at a proxy before it.
func MariaDBAt(t testing.TB, addr, database string) *sql.DB {
	return MySQL(t, addr, "hasp", "hasp", database)
}

// MySQL is a pool.
func MySQL(t testing.TB, addr, user, password, params string) *sql.DB {
	t.Helper()
	return open(t, "mysql", fmt.Sprintf("%s:%s@tcp(%s)/%s", user, password, addr, params))
}

// MySQLStatus is one of the server's counters.
func MySQLStatus(t testing.TB, db *sql.DB, name string) (n int64) {
	t.Helper()
	if err := db.QueryRow("SHOW GLOBAL STATUS LIKE '"+name+"'").Scan(new(string), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// NaiveGetLock is the control for locks that are bound to a connection: the connection is not used
// while it is held. A server that closes silent connections after a second may close this one before it is asked: there
// are three tries.
func NaiveGetLock(ctx context.Context, t testing.TB, db *sql.DB, name string) {
	t.Helper()
	for try := 1; ; try++ {
		c, err := db.Conn(ctx)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		var got sql.NullInt64
		err = c.QueryRowContext(ctx, "SELECT GET_LOCK('"+name+"', 30)").Scan(&got)
		if err == nil && got.Int64 == 1 {
			return
		}
		if err == nil || try == 3 {
			t.Fatalf("the control cannot lock: %+v, %v", got, err)
		}
	}
}
