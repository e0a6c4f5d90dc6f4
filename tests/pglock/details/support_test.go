package pglock_test

import (
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/naivelock"
	"github.com/hasplock/hasp/internal/testkit"
)

// T is the TTL of clients whose leases are to expire, lasting of those that must be renewed to
// last through a test, calm of those whose leases are to last on a busy machine, and
// slack how long is waited for what must come.
const (
	T       = 2 * time.Second
	lasting = 6 * time.Second
	calm    = 20 * time.Second
	slack   = testkit.Patience
)

func client(t testing.TB, storeURL string, opts ...hasp.Option) *hasp.Client {
	t.Helper()
	return testkit.Client(t, storeURL, append([]hasp.Option{hasp.WithTTL(calm)}, opts...)...)
}

// queued starts to lock and returns when the client says that it waits.
func queued(t testing.TB, storeURL, name string, opts ...hasp.Option) <-chan *hasp.Lease {
	t.Helper()
	return testkit.Waiting(t, name, func(seen hasp.Option) *hasp.Client {
		return client(t, storeURL, append(opts, seen)...)
	})
}

// lasts watches a lease for longer than its TTL.
func lasts(t testing.TB, l *hasp.Lease, ttl time.Duration) {
	t.Helper()
	select {
	case <-l.Context().Done():
		t.Errorf("lost: %v", l.Err())
	case <-time.After(ttl + ttl/4):
	}
}

// listed returns the entries of a lease's name. The holder of an advisory lock is shown without a
// name until it is recorded, which a busy machine does late.
func listed(t testing.TB, c *hasp.Client, l *hasp.Lease) (q []hasp.Entry) {
	t.Helper()
	testkit.Until(t, "the record of the holder", func() error {
		q = testkit.Entries(t, c, l.Name())
		if slices.ContainsFunc(q, func(e hasp.Entry) bool { return e.ID == l.ID() }) {
			return nil
		}
		return fmt.Errorf("listed %+v, and %s holds", q, l.ID())
	})
	return q
}

// found has a client find a lock taken, which moves the row holder to the entries.
func found(t testing.TB, c *hasp.Client, name string) {
	t.Helper()
	if _, err := c.Mutex(name).TryLock(testkit.Context(t)); !errors.Is(err, hasp.ErrBusy) {
		t.Fatalf("a try beside the holder of %s: %v", name, err)
	}
}

// sqlPool is a superuser's pool at the shared server, or at a proxy before it.
func sqlPool(t testing.TB, addr string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", "postgres://postgres@"+addr+"/postgres?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// byHand is the control: a naive lock, whose holder still trusts it.
func byHand(t testing.TB, db *sql.DB, name string) *naivelock.Lease {
	t.Helper()
	return naivelock.Hold(testkit.Context(t), t, db, name, T)
}

// private is a server of the test's own, where it may stop, exhaust and misconfigure.
func private(t testing.TB, config ...string) *backends.Postgres {
	t.Helper()
	return backends.StartPostgres(t, backends.PostgresOptions{Config: config})
}

// as gives a URL another user.
func as(storeURL, user string) string {
	return strings.Replace(storeURL, "postgres@", user+"@", 1)
}

func writeFile(t testing.TB, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func replaceHost(t testing.TB, storeURL, host string) string {
	t.Helper()
	u, err := url.Parse(storeURL)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = host + ":" + u.Port()
	return u.String()
}

func replaceDatabase(t testing.TB, storeURL, database string) string {
	t.Helper()
	u, err := url.Parse(storeURL)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + database
	return u.String()
}
