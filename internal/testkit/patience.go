package testkit

import (
	"context"
	"errors"
	"testing"
	"time"
)

// Patience is how long a test waits for an event that must come. Only a fault takes that long: a
// busy machine does not. It is less than a minute because many tests of what has to happen before a
// TTL ends choose a minute for that TTL, and must not wait until it does.
const Patience = 40 * time.Second

// every is the interval of polling.
const every = 5 * time.Millisecond

// Context ends with the test, or long after a correct test is done. Unlike t.Context() it still
// lasts while the test's cleanups run.
func Context(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	t.Cleanup(cancel)
	return ctx
}

// Eventually polls for a condition, and fails the test if it does not come.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	Until(t, what, func() error {
		if ok() {
			return nil
		}
		return errNotYet
	})
}

var errNotYet = errors.New("not yet")

// Until is Eventually for a check that can say what it has seen instead: the test fails with its
// last error.
func Until(t testing.TB, what string, check func() error) {
	t.Helper()
	for end := time.Now().Add(Patience); ; time.Sleep(every) {
		// The clock is read first, so that the last look is one after the end: a machine that was
		// stopped all the time had no chance to see it earlier.
		over := time.Now().After(end)
		err := check()
		if err == nil {
			return
		}
		if over && errors.Is(err, errNotYet) {
			t.Fatalf("waited %s without success for: %s", Patience, what)
		}
		if over {
			t.Fatalf("waited %s without success for: %s; last seen: %v", Patience, what, err)
		}
	}
}

// Await receives a value that must come. For a closed channel it returns the zero value.
func Await[V any](t testing.TB, what string, from <-chan V) V {
	t.Helper()
	end := time.NewTimer(Patience)
	defer end.Stop()
	select {
	case v := <-from:
		return v
	case <-end.C:
	}
	select {
	case v := <-from: // both were ready when this goroutine ran
		return v
	default:
		t.Fatalf("waited %s without success for: %s", Patience, what)
		panic("unreachable")
	}
}
