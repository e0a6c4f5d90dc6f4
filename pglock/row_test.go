package pglock_test

import (
	"context"
	"sync"
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
		try := mutex("a")
		try.NoWait = true // the backend may take a while to end, and one that waited would be in the way of those after it
		next, err = second.Ticket(try).Enqueue(testkit.Context(t))
		return err == nil && next.Held
	})
	late.Deliver()
	if a := <-answered; a.Held {
		t.Errorf("it holds with token %d beside the next one with %d", a.Token, next.Token)
	}
}

// S1: a statement on the connection of a row's lock is cancelled, as by an administrator's job against long transactions. The
// server gives the row up and the connection stands. The holder was not told, for as long as it held.
func TestCancelledTransactionIsLost(t *testing.T) {
	t.Parallel()
	server := private(t)
	storeURL := sqlkit.With(server.URL(), "strategy=row")
	first, gone := opened(t, storeURL, calm)
	second, _ := opened(t, storeURL, calm)
	enqueue(t, first.Ticket(mutex("a")))
	pid := ask[int](t, server.URL(), "SELECT pid FROM pg_stat_activity WHERE state = 'idle in transaction'")
	ctx, cancel := context.WithCancel(testkit.Context(t))
	var renewals sync.WaitGroup
	renewals.Go(func() {
		for ctx.Err() == nil {
			first.KeepAlive(ctx)
		}
	})
	defer renewals.Wait()
	defer cancel()
	r := mutex("a")
	r.NoWait = true
	for ctx.Err() == nil && len(gone) == 0 {
		ask[int](t, server.URL(), "SELECT count(pg_cancel_backend($1))::int FROM generate_series(1, 2000)", pid)
		if v, err := second.Ticket(r).Enqueue(ctx); err == nil && v.Held {
			break
		}
	}
	if ctx.Err() != nil {
		t.Skip("inconclusive: no cancel has met a renewal")
	}
	testkit.Await(t, "the loss of a lock that another can have", gone)
}

// A refused try names the client that holds, and no other: not the last one that was recorded, which has released.
func TestRefusedTryOfRowNamesTheHolder(t *testing.T) {
	t.Parallel()
	storeURL := sqlkit.PostgresStore(t, "strategy=row")
	first, _ := opened(t, storeURL, calm)
	unrecorded, _ := opened(t, sqlkit.With(storeURL, "fence=off"), calm)
	other, _ := opened(t, storeURL, calm)
	names := func(want string) {
		t.Helper()
		try := mutex("row/named")
		try.NoWait = true
		if v, err := other.Ticket(try).Enqueue(testkit.Context(t)); err != nil || v.Held || v.Holder != want {
			t.Errorf("a try: %+v, %v; want it to name %q", v, err, want)
		}
	}
	r := mutex("row/named")
	r.Owner = "the first"
	recorded := first.Ticket(r)
	enqueue(t, recorded)
	names(r.Owner)
	leave(t, recorded)
	enqueue(t, unrecorded.Ticket(mutex(r.Name)))
	names("")
}
