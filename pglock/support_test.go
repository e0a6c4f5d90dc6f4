package pglock

import (
	"context"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// patience is how long is waited for what must come.
const patience = 40 * time.Second

// serverURL is the server that EXAMPLE_STORE names, for tests that must look inside a store or a
// ticket. A module's tests start no servers: tests/pglock/details has one, and runs these.
func serverURL(t *testing.T, params ...string) string {
	t.Helper()
	server := os.Getenv("EXAMPLE_STORE")
	if server == "" {
		t.Skip("tests/pglock/details runs it")
	}
	return strings.Join(append([]string{server}, params...), "&")
}

// openHere opens a store of that server.
func openHere(t *testing.T, storeURL string) driver.Backend {
	t.Helper()
	b := must[driver.Backend](t)(openURL(limited(t), must[*url.URL](t)(url.Parse(storeURL))))
	t.Cleanup(func() { b.Close() })
	return b
}

// holding is a session below the core, with one lock.
func holding(t *testing.T, b driver.Backend, ttl time.Duration, name string) (driver.Session, driver.Ticket) {
	t.Helper()
	s, _, err := b.Open(limited(t), driver.SessionOptions{TTL: ttl, Gone: func(string, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(limited(t)) })
	k := s.Ticket(requestFor(name, "first"))
	if v, err := k.Enqueue(limited(t)); err != nil || !v.Held {
		t.Fatalf("%+v, %v", v, err)
	}
	return s, k
}

func requestFor(name, id string) driver.Request {
	return driver.Request{Name: name, ID: id, Units: driver.Whole, Capacity: driver.Whole, Since: time.Now()}
}

// client has a TTL that lasts on a busy machine.
func client(t *testing.T, b driver.Backend) *hasp.Client {
	t.Helper()
	c := must[*hasp.Client](t)(hasp.New(b, hasp.WithTTL(patience/2)))
	t.Cleanup(func() { c.Close() })
	return c
}

func lock(t *testing.T, c *hasp.Client, name string) *hasp.Lease {
	t.Helper()
	return must[*hasp.Lease](t)(c.Mutex(name).Lock(limited(t)))
}

func release(t *testing.T, l *hasp.Lease) {
	t.Helper()
	if err := l.Release(limited(t)); err != nil {
		t.Error(err)
	}
}

// connect connects beside hasp.
func connect(t *testing.T, server string) *pgx.Conn {
	t.Helper()
	conn := must[*pgx.Conn](t)(pgx.Connect(limited(t), server))
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// ask reads one value.
func ask[V any](t *testing.T, question string) (v V) {
	t.Helper()
	if err := connect(t, serverURL(t)).QueryRow(limited(t), question).Scan(&v); err != nil {
		t.Fatalf("%s: %v", question, err)
	}
	return v
}

// limited is a context that ends long after a correct test is done.
func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// until polls until a check has no error, and fails the test with the last one.
func until(t *testing.T, what string, check func() error) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("waited %s without success for: %s; last seen: %v", patience, what, err)
		}
	}
}

func must[V any](t *testing.T) func(V, error) V {
	return func(v V, err error) V {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
