package testkit

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Session is a session below the core, which is not renewed and is closed at the test's end. gone
// receives the losses; nil if the test does not need them.
func Session(t testing.TB, b driver.Backend, ttl time.Duration, gone func(id string, err error)) driver.Session {
	t.Helper()
	if gone == nil {
		gone = func(string, error) {}
	}
	s, _, err := b.Open(Context(t), driver.SessionOptions{TTL: ttl, Gone: gone})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		defer cancel()
		_ = s.Close(ctx) // in many tests the store is dead by then
	})
	return s
}

// Request is for a mutex, under a new ID.
func Request(name string) driver.Request {
	return RequestAs(name, fmt.Sprintf("test-%d", requests.Add(1)))
}

var requests atomic.Int64

// RequestAs is for a mutex, under this ID.
func RequestAs(name, id string) driver.Request {
	return driver.Request{Name: name, ID: id, Units: driver.Whole, Capacity: driver.Whole, Since: time.Now()}
}
