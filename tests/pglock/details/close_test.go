package pglock_test

import (
	"context"
	"errors"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// L3: a context that ends while a store is opened ends that, and not only when pgx has said goodbye
// on the connection, for which it takes 15 s if the server is silent.
func TestOpenEndsWithItsContext(t *testing.T) {
	t.Parallel()
	storeURL := sqlkit.PostgresStore(t)
	late, slow := behindLate(t, storeURL, "pg_is_in_recovery")
	closed, slow := firstEnds(t, slow)
	ctx, cancel := context.WithCancel(testkit.Context(t))
	opened := make(chan error, 1)
	go func() {
		_, err := hasp.Open(ctx, slow)
		opened <- err
	}()
	late.wait(ctx, t)
	cancel()
	if err := testkit.Await(t, "the end of Open", opened); !errors.Is(err, context.Canceled) {
		t.Errorf("Open: %v", err)
	}
	ask[int](t, backends.SharedPostgres(t).URL(), "SELECT 1") // the proxy has had the time to see the end
	select {
	case <-closed:
		t.Error("Open has returned after its connection has ended")
	default:
	}
}

// A backend is closed while a call on it gets no answer. (It waited for that call.)
func TestCloseBesideCall(t *testing.T) {
	t.Parallel()
	server := private(t)
	for _, params := range []string{"strategy=table", "strategy=advisory"} {
		b := testkit.Open(t, sqlkit.With(server.URL(), params))
		testkit.Session(t, b, calm, nil) // which makes the tables
		hold := executor(t, server.URL())
		hold("BEGIN; LOCK TABLE hasp_entries, hasp_holders IN ACCESS EXCLUSIVE MODE")
		listed := make(chan error, 1)
		go func() {
			_, err := b.List(testkit.Context(t), "a", 0)
			listed <- err
		}()
		testkit.Eventually(t, "a call that waits", func() bool {
			return ask[int](t, server.URL(), "SELECT count(*)::int FROM pg_locks WHERE locktype = 'relation' AND NOT granted") >= 1
		})
		closed := make(chan error, 1)
		go func() { closed <- b.Close() }()
		if err := testkit.Await(t, params+": the end of the backend", closed); err != nil {
			t.Error(err)
		}
		if len(listed) > 0 {
			t.Errorf("%s: the call has ended: %v", params, <-listed)
		}
		hold("COMMIT")
	}
}
