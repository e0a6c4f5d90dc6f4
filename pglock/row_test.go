package pglock_test

import (
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// S2: the connection of a row's lock is killed while its token is drawn. The next holder may have a
// lower token than that: so the first is not told that it holds.
func TestRowIsLostWhileItsTokenIsDrawn(t *testing.T) {
	t.Parallel()
	server := private(t)
	storeURL := sqlkit.With(server.URL(), "strategy=row")
	const owner = "owner of the slow one" // in no other request than that for the token
	late, slow := behindLate(t, storeURL, owner)
	second, _ := opened(t, storeURL, calm)
	first, _ := opened(t, slow, calm)
	r := mutex("a")
	r.Owner = owner

	type answer struct {
		driver.Verdict
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		v, err := first.Ticket(r).Enqueue(testkit.Context(t))
		answered <- answer{v, err}
	}()
	late.wait(testkit.Context(t), t)
	const holders = "SELECT count(pg_terminate_backend(pid))::int FROM pg_stat_activity WHERE state = 'idle in transaction'"
	if n := ask[int](t, server.URL(), holders); n != 1 {
		t.Fatalf("%d connections hold a row", n)
	}
	var next driver.Verdict
	testkit.Eventually(t, "the next holds", func() bool {
		var err error
		next, err = second.Ticket(mutex("a")).Enqueue(testkit.Context(t))
		return err == nil && next.Held
	})
	late.Deliver()
	if a := <-answered; a.Held {
		t.Errorf("it holds with token %d beside the next one with %d", a.Token, next.Token)
	}
}
