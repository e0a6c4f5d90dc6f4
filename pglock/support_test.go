package pglock_test

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/handmade"
)

// T is the TTL of clients whose leases are to expire, calm of those whose leases are to
// last whatever else the machine does, and slack how long is waited for what must come:
// only a fault takes that long.
const (
	T     = 2 * time.Second
	calm  = 20 * time.Second
	slack = 40 * time.Second
)

func client(t testing.TB, storeURL string, opts ...hasp.Option) *hasp.Client {
	t.Helper()
	return clientOn(t, func() (*hasp.Client, error) {
		return hasp.Open(t.Context(), storeURL, append([]hasp.Option{hasp.WithTTL(calm)}, opts...)...)
	})
}

func clientOn(t testing.TB, make func() (*hasp.Client, error)) *hasp.Client {
	t.Helper()
	c, err := make()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func patience(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), slack)
	t.Cleanup(cancel)
	return ctx
}

func lock(t testing.TB, c *hasp.Client, name string) *hasp.Lease {
	t.Helper()
	l, err := c.Mutex(name).Lock(patience(t))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func release(t testing.TB, l *hasp.Lease) {
	t.Helper()
	if err := l.Release(patience(t)); err != nil {
		t.Errorf("release: %v", err)
	}
}

// queued starts to lock and returns when the client says that it waits.
func queued(t testing.TB, storeURL, name string, opts ...hasp.Option) <-chan *hasp.Lease {
	t.Helper()
	stands := make(chan struct{}, 1)
	c := client(t, storeURL, append(opts, hasp.WithObserver(observer(func(e hasp.Event) {
		if e.Kind == hasp.Waiting {
			select {
			case stands <- struct{}{}:
			default:
			}
		}
	})))...)
	got, ctx := make(chan *hasp.Lease, 1), patience(t)
	go func() {
		l, err := c.Mutex(name).Lock(ctx)
		if err != nil && t.Context().Err() == nil {
			t.Errorf("the waiter for %s: %v", name, err)
		}
		got <- l
	}()
	select {
	case <-stands:
	case <-ctx.Done():
		t.Fatal("the waiter does not get into the queue")
	}
	return got
}

type observer func(hasp.Event)

func (o observer) Observe(e hasp.Event) { o(e) }

// takes waits for a lease.
func takes(t testing.TB, got <-chan *hasp.Lease) *hasp.Lease {
	t.Helper()
	select {
	case l := <-got:
		if l == nil {
			t.Fatal("the waiter gave up")
		}
		return l
	case <-time.After(slack):
		t.Fatalf("no grant within %s", slack)
	}
	return nil
}

func wantLost(t testing.TB, l *hasp.Lease, reasons ...hasp.Reason) {
	t.Helper()
	select {
	case <-l.Lost():
	case <-time.After(slack):
		t.Fatalf("not lost within %s", slack)
	}
	var lost *hasp.LostError
	if !errors.As(l.Err(), &lost) || !slices.Contains(reasons, lost.Reason) {
		t.Errorf("lost: %v; want one of %q", l.Err(), reasons)
	}
}

// entries are those of a name, as anybody sees them.
func entries(t testing.TB, c *hasp.Client, name string) []hasp.Entry {
	t.Helper()
	q, err := c.Inspect(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return append(q.Holders, q.Waiters...)
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(slack); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in vain waited for: %s", what)
		}
	}
}

// lasts watches a lease for longer than its TTL.
func lasts(t testing.TB, l *hasp.Lease, ttl time.Duration) {
	t.Helper()
	select {
	case <-l.Lost():
		t.Errorf("lost: %v", l.Err())
	case <-time.After(ttl + ttl/4):
	}
}

// behind puts a proxy before the server of a URL.
func behind(t testing.TB, storeURL string) (*faultnet.Proxy, string) {
	t.Helper()
	u, err := url.Parse(storeURL)
	if err != nil {
		t.Fatal(err)
	}
	// Its own context: t's ends before the clients of the test close.
	net, err := faultnet.New(context.Background(), u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(net.Close)
	u.Host = net.Addr()
	return net, u.String()
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

// byHand is the control: a lock that somebody has written by hand, and still believes in.
func byHand(t testing.TB, db *sql.DB, name string) *handmade.Lease {
	t.Helper()
	return handmade.Hold(patience(t), t, db, name, T)
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
