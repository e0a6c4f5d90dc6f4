package testkit

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// Open opens a store by its URL, as hasp.Open does. The caller closes it: usually that is a
// client.
func Open(t testing.TB, storeURL string) driver.Backend {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	b, err := Again(ctx, func() (driver.Backend, error) { return driver.Open(ctx, storeURL) })
	if err != nil {
		t.Fatalf("open %s: %v", storeURL, err)
	}
	return b
}

// Again opens, or locks, until it succeeds, or fails by something else than time: a store on a busy machine
// may not answer as soon as its driver demands. No driver gives up in less than a second unless it
// says that a deadline has passed.
func Again[T any](ctx context.Context, open func() (T, error)) (T, error) {
	for {
		began := time.Now()
		opened, err := open()
		late := errors.Is(err, context.DeadlineExceeded) || time.Since(began) > time.Second
		if err == nil || !late || ctx.Err() != nil {
			return opened, err
		}
	}
}

// Client is a client of the store at a URL, closed at the test's end.
func Client(t testing.TB, storeURL string, opts ...hasp.Option) *hasp.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	c, err := Again(ctx, func() (*hasp.Client, error) { return hasp.Open(ctx, storeURL, opts...) })
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
