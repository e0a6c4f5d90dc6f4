package testkit

import (
	"context"
	"testing"

	"github.com/hasplock/hasp"
)

// Locking locks in the background, and delivers the lease, or nil for an error. The test's end ends
// the wait, and so does a bound after which a test no longer expects it.
func Locking(t testing.TB, c *hasp.Client, name string) <-chan *hasp.Lease {
	t.Helper()
	got, done := make(chan *hasp.Lease, 1), make(chan struct{})
	t.Cleanup(func() { <-done }) // t.Context() has ended by then
	ctx, cancel := context.WithTimeout(t.Context(), 3*Patience)
	go func() {
		defer close(done)
		defer cancel()
		l, err := c.Mutex(name).Lock(ctx)
		if err != nil {
			t.Logf("the waiter for %s: %v", name, err)
		}
		got <- l
	}()
	return got
}

// Queued is Locking that returns when the queue has one entry more, for a store that shows its
// waiters.
func Queued(t testing.TB, c *hasp.Client, name string) <-chan *hasp.Lease {
	t.Helper()
	before := len(Entries(t, c, name))
	got := Locking(t, c, name)
	Eventually(t, "the waiter's entry", func() bool { return len(Entries(t, c, name)) > before })
	return got
}

// Waiting is Locking that returns when the client reports that it waits, for any store. Its
// argument makes the client with one more option.
func Waiting(t testing.TB, name string, client func(hasp.Option) *hasp.Client) <-chan *hasp.Lease {
	t.Helper()
	waits := make(chan struct{}, 1)
	c := client(hasp.WithObserver(Observer(func(e hasp.Event) {
		if e.Kind == hasp.EventWaiting {
			select {
			case waits <- struct{}{}:
			default:
			}
		}
	})))
	got := Locking(t, c, name)
	Await(t, "the waiter's place in the queue", waits)
	return got
}

// Observer makes an observer of a function.
type Observer func(hasp.Event)

// Observe calls it.
func (o Observer) Observe(e hasp.Event) { o(e) }

// Entries are those of a name, holders first, as every client sees them.
func Entries(t testing.TB, c *hasp.Client, name string) []hasp.Entry {
	t.Helper()
	q, err := c.Inspect(Context(t), name)
	if err != nil {
		t.Fatal(err)
	}
	return append(q.Holders, q.Waiters...)
}
