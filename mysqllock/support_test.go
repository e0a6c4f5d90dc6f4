package mysqllock

import (
	"context"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
)

// patience is how long is waited for what must come.
const patience = 40 * time.Second

// serverURL is the server that EXAMPLE_STORE names, for tests that must look inside a store or a
// connection. A module's tests start no servers: tests/mysqllock/details has one, and runs these.
func serverURL(t *testing.T, params string) string {
	t.Helper()
	server := os.Getenv("EXAMPLE_STORE")
	if server == "" {
		t.Skip("tests/mysqllock/details runs it")
	}
	return server + "?" + params
}

// openHere opens a store of that server.
func openHere(t *testing.T, params string) driver.Backend {
	t.Helper()
	u, err := url.Parse(serverURL(t, params))
	if err != nil {
		t.Fatal(err)
	}
	b, err := openURL(limited(t), u)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// limited is a context that ends long after a correct test is done.
func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	t.Cleanup(cancel)
	return ctx
}

func request(name string) driver.Request {
	return driver.Request{Name: name, ID: name + "-id", Units: driver.Whole, Capacity: driver.Whole, Since: time.Now()}
}

// eventually polls for a condition, and fails the test if it does not come.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %s without success for: %s", patience, what)
		}
	}
}

// await receives a value that must come.
func await[V any](t *testing.T, what string, from <-chan V) (v V) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		t.Fatalf("waited %s without success for: %s", patience, what)
	}
	return v
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
