package pglock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// The server looks for circles in a time that grows steeply with the longest queue
// for one of its locks, and stands still meanwhile. So a crowd never makes a long one:
// each waits for the position of the one before, and only the first for the lock itself.
// All are served nevertheless. The control is a crowd of naive waiters.
func TestCrowdsMakeShortQueues(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	server := private(t, "max_connections = 1000")
	t.Run("advisory", func(t *testing.T) {
		storeURL := sqlkit.With(server.URL(), "strategy=advisory")
		held := testkit.Lock(t, client(t, storeURL), "popular")
		served := crowd(t, locks(t, storeURL))
		// Not those that wait at this moment: some are between two slices.
		testkit.Eventually(t, "a crowd that waits", func() bool { return stands(t, server.URL()) == many })
		if n := ask[int](t, server.URL(), longest); n > 2 {
			t.Errorf("%d wait for one lock, want at most 2", n)
		}
		testkit.Release(t, held)
		served()
	})
	t.Run("table", func(t *testing.T) { crowdAtTable(t, server.URL()) })
	t.Run("control", func(t *testing.T) {
		conn, err := pgx.Connect(t.Context(), server.URL())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		if _, err := conn.Exec(t.Context(), "SELECT pg_advisory_lock(1)"); err != nil {
			t.Fatal(err)
		}
		served := crowd(t, func(ctx context.Context) error {
			own, err := pgx.Connect(ctx, server.URL())
			if err != nil {
				return err
			}
			defer own.Close(context.Background()) // which releases
			_, err = own.Exec(ctx, "SELECT pg_advisory_lock(1)")
			return err
		})
		testkit.Eventually(t, "a crowd that waits", func() bool { return ask[int](t, server.URL(), waiting) == many })
		if n := ask[int](t, server.URL(), longest); n != many {
			t.Errorf("%d wait for one lock: this test does not see queues", n)
		}
		conn.Close(t.Context())
		served()
	})
}

// The queue of a table is as long as it likes; what must be short is the server's, of those
// who change it at the same moment. A release passes them: it is behind those who wait for
// the name's turn, not behind those who wait for a slot.
func crowdAtTable(t *testing.T, serverURL string) {
	held := testkit.Lock(t, client(t, serverURL), "popular")
	released := make(chan error, 1)
	var served func()
	holds(t, serverURL, "popular", func() {
		served = crowd(t, locks(t, serverURL))
		testkit.Eventually(t, "a crowd that waits", func() bool { return ask[int](t, serverURL, waiting) == many })
		go func() { released <- held.Release(testkit.Context(t)) }()
		testkit.Eventually(t, "a release that waits", func() bool { return ask[int](t, serverURL, waiting) == many+1 })
		if n := ask[int](t, serverURL, longest+" WHERE NOT slot"); n > 16+1 {
			t.Errorf("%d wait for one lock, want the release and at most 16", n)
		}
		// Who stands behind which slot is chance: eleven on average, and twenty rarely.
		if n := ask[int](t, serverURL, longest+" WHERE slot"); n == 0 || n > many/4 {
			t.Errorf("%d wait for one slot of 16", n)
		}
	})
	if err := <-released; err != nil {
		t.Error(err)
	}
	served()
}

// locks locks and unlocks, each time as a new client.
func locks(t *testing.T, storeURL string) func(context.Context) error {
	return func(ctx context.Context) error {
		c, err := hasp.Open(ctx, storeURL, hasp.WithTTL(calm))
		if err != nil {
			return err
		}
		defer c.Close()
		return c.Do(ctx, "popular", func(context.Context) error { return nil })
	}
}

// many are more than there are slots.
const many = 200

// crowd has so many goroutines do something; the returned function waits until they have.
func crowd(t *testing.T, do func(context.Context) error) (served func()) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*slack)
	var wg sync.WaitGroup
	for i := range many {
		wg.Go(func() {
			if err := do(ctx); err != nil && t.Context().Err() == nil {
				t.Error(fmt.Errorf("number %d of the crowd: %w", i, err))
			}
		})
	}
	t.Cleanup(func() { cancel(); wg.Wait() })
	return func() {
		began := time.Now()
		wg.Wait()
		t.Logf("served within %s", time.Since(began))
	}
}

const (
	waiting = "SELECT count(DISTINCT pid)::int FROM pg_locks WHERE NOT granted"
	// Slots have locks of two numbers, which the server marks by objsubid 2; no others have.
	longest = `SELECT coalesce(max(n), 0)::int FROM (
		SELECT count(*) AS n, locktype = 'advisory' AND objsubid = 2 AS slot FROM pg_locks WHERE NOT granted
		GROUP BY locktype, database, relation, page, tuple, transactionid, classid, objid, objsubid) q`
)
