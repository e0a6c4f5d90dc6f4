package mysqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql" // for pool

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/naivelock"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	_ "github.com/hasplock/hasp/mysqllock"
)

// T is the TTL of clients whose leases are to expire, lasting of those that must be renewed
// to last through a test, and calm of those whose leases are to last on a busy
// machine. slack is how long is waited for what must come.
const (
	T       = 2 * time.Second
	lasting = 6 * time.Second
	calm    = 20 * time.Second
	slack   = testkit.Patience
)

// serverURL is MariaDB, or the server that HASP_TEST_MYSQL_URL names.
func serverURL(t testing.TB) string {
	if u := sqlkit.OtherMySQL(); u != "" {
		return u
	}
	return sqlkit.MariaDBStore(t, backends.SharedMariaDB(t))
}

// byHand is the control: a naive lock, whose holder still trusts it.
func byHand(t testing.TB, db *sql.DB, name string) *naivelock.Lease {
	t.Helper()
	return naivelock.Hold(ctx(t), t, db, name, T)
}

// number is the first column of the first row.
func number(t testing.TB, db *sql.DB, text string) (n int64) {
	t.Helper()
	if err := db.QueryRow(text).Scan(&n); err != nil {
		t.Fatalf("%.100s: %v", text, err)
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

// noted is the server's number of the connection that has a lock of the strategy getlock. It is
// recorded a moment after the grant, on a busy machine later than Inspect waits for it.
func noted(t testing.TB, db *sql.DB, l *hasp.Lease) (connection int64) {
	t.Helper()
	text := fmt.Sprintf("SELECT connection FROM locks.hasp_bound WHERE name = '%s' AND id = '%s'", l.Name(), l.ID())
	testkit.Until(t, "the record of "+l.Name(), func() error { return db.QueryRow(text).Scan(&connection) })
	return connection
}

// outlasts demands that a lease outlasts its TTL. One that a busy machine has not renewed in time
// says nothing: then it is tried again with twice the TTL, three times in all.
func outlasts(t testing.TB, hold func(ttl time.Duration) *hasp.Lease) {
	t.Helper()
	for try, ttl := 1, lasting; ; try, ttl = try+1, 2*ttl {
		l := hold(ttl)
		time.Sleep(ttl + T)
		if l.Held() {
			return
		}
		var lost *hasp.LostError
		if try == 3 || !errors.As(l.Err(), &lost) || lost.Reason != hasp.ReasonExpired {
			t.Errorf("lost, try %d: %v", try, l.Err())
			return
		}
	}
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
