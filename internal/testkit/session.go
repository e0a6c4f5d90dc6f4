package testkit

import (
	"context"
	"errors"
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

// Definite reports whether a driver's error says how it is, and not only that it is unknown.
func Definite(err error) bool {
	for _, known := range []error{
		driver.ErrGone, driver.ErrForgotten, driver.ErrMismatch, driver.ErrUnsupported,
		driver.ErrRefused, driver.ErrInvalid, driver.ErrClosed,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// Entered enters with a ticket. It asks again while the store does not answer: a busy machine may take
// longer than the driver waits.
func Entered(t testing.TB, ticket driver.Ticket) driver.Verdict {
	t.Helper()
	v, _ := entered(t, ticket)
	return v
}

// entered says as well whether it had to ask again.
func entered(t testing.TB, ticket driver.Ticket) (v driver.Verdict, again bool) {
	t.Helper()
	ctx := Context(t)
	v, err := ticket.Enqueue(ctx)
	for err != nil && ctx.Err() == nil && !errors.Is(err, driver.ErrGone) {
		again = true
		time.Sleep(every)
		v, err = ticket.Enqueue(ctx)
	}
	if err != nil {
		t.Fatalf("enqueue: %v", err)
	}
	return v, again
}

// Held is Entered for a ticket that must hold at once. If it had to ask again, it may be refused a few times by what
// its first request has left.
func Held(t testing.TB, ticket driver.Ticket) driver.Verdict {
	t.Helper()
	v, again := entered(t, ticket)
	for i := 0; again && !v.Held && i < 10; i++ {
		time.Sleep(every << i) // it is 5 s in all
		v, _ = entered(t, ticket)
	}
	if !v.Held {
		t.Fatalf("%+v", v)
	}
	return v
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

// Places has as many enter a name behind a holder as there are places, and requires these of their
// verdicts: a driver that says less than it did must say so here.
func Places(t testing.TB, b driver.Backend, want ...int) {
	t.Helper()
	s, name := Session(t, b, time.Minute, nil), "places"
	Held(t, s.Ticket(Request(name)))
	for i, place := range want {
		if v := Entered(t, s.Ticket(Request(name))); v.Held || v.Place != place {
			t.Errorf("waiter %d: %+v, want place %d", i+1, v, place)
		}
	}
}
