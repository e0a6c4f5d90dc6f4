package testkit

import (
	"context"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// Open opens a store by its URL, as hasp.Open does. The caller closes it: usually that is a
// client.
func Open(t testing.TB, storeURL string) driver.Backend {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	b, err := driver.Open(ctx, storeURL)
	if err != nil {
		t.Fatalf("open %s: %v", storeURL, err)
	}
	return b
}

// Client is a client of the store at a URL, closed at the test's end.
func Client(t testing.TB, storeURL string, opts ...hasp.Option) *hasp.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	c, err := hasp.Open(ctx, storeURL, opts...)
	return closed(t, c, err)
}

// ClientOn is a client of a backend, both closed at the test's end.
func ClientOn(t testing.TB, b driver.Backend, opts ...hasp.Option) *hasp.Client {
	t.Helper()
	c, err := hasp.New(b, opts...)
	return closed(t, c, err)
}

func closed(t testing.TB, c *hasp.Client, err error) *hasp.Client {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	// Its error does not matter here: in many tests the store is dead by then.
	t.Cleanup(func() { _ = c.Close() })
	return c
}
