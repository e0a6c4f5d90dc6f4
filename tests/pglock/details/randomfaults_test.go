package pglock_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// killBackends ends every connection of hasp's, as an administrator does.
const killBackends = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'hasp'"

// S1, L2: the server ends all connections, again and again. Leases live in rows: no client
// loses one, waiters get theirs, and an unprotected counter adds up. The control is a naive lock:
// an advisory lock on a pool's connection, which is not read from while it is held.
func TestTerminatedBackends(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	server := private(t)
	held := testkit.Lock(t, client(t, server.URL()), "held")
	if lost := countedUnderKills(t, server, func() func(context.Context, func()) error {
		c := client(t, server.URL())
		return func(ctx context.Context, work func()) error {
			return c.Do(ctx, "counter", func(context.Context) error { work(); return nil })
		}
	}); lost != 0 {
		t.Errorf("%d increments were lost", lost)
	}
	if !held.Held() {
		t.Error(held.Err())
	}
	testkit.Release(t, held)
	lost := int64(0)
	for i := 0; i < 10 && lost == 0; i++ { // chance has a hand in it
		lost = countedUnderKills(t, server, func() func(context.Context, func()) error { return advisoryByHand(t, server) })
	}
	if lost == 0 {
		t.Error("holders that do not look after their connections were not caught")
	}
}

// countedUnderKills has workers count under a lock, while all connections are ended ten times
// a second, and returns how many increments were lost.
func countedUnderKills(t *testing.T, server *backends.Postgres, locker func() func(context.Context, func()) error) (lost int64) {
	const workers, times = 4, 8
	var counter atomic.Int64 // loaded and stored apart: only the lock makes that an increment
	done := make(chan error, workers)
	for range workers {
		do := locker()
		go func() {
			done <- func() error {
				ctx, cancel := context.WithTimeout(t.Context(), 3*slack)
				defer cancel()
				for worked := 0; worked < times; {
					err := do(ctx, func() {
						worked++
						n := counter.Load()
						time.Sleep(20 * time.Millisecond)
						counter.Store(n + 1)
					})
					// Trouble before it stood in the queue is told at once, for the caller to try
					// again; trouble of a release does not undo the work.
					if ctx.Err() != nil {
						return err
					}
				}
				return nil
			}()
		}()
	}
	for finished := 0; finished < workers; {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			finished++
		case <-time.After(100 * time.Millisecond):
			ask[int64](t, server.URL(), killBackends)
		}
	}
	return workers*times - counter.Load()
}

// advisoryByHand locks with one statement and unlocks with another, and believes what it was
// told first.
func advisoryByHand(t *testing.T, server *backends.Postgres) func(context.Context, func()) error {
	pool, err := pgxpool.New(t.Context(), sqlkit.With(server.URL(), "application_name=hasp"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return func(ctx context.Context, work func()) error {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(1)"); err != nil {
			return err
		}
		work()
		_, err = conn.Exec(ctx, "SELECT pg_advisory_unlock(1)")
		return err
	}
}

// S1, S2: the server crashes or is restarted cleanly. What was granted is in its log: the
// holder goes on, the waiter gets it after the release, with a higher token. The control
// keeps its entries in a table of which the log has nothing.
func TestRestart(t *testing.T) {
	t.Parallel()
	server := private(t)
	control := sqlkit.With(server.URL(), "prefix=unlogged_")
	testkit.Release(t, testkit.Lock(t, client(t, control), "first use"))
	sqlkit.Postgres(t, server.URL(), "ALTER TABLE unlogged_entries SET UNLOGGED; ALTER TABLE unlogged_sessions SET UNLOGGED")
	restarts := hasp.WithTTL(10 * time.Minute) // as long as it takes
	forgotten := testkit.Lock(t, client(t, control, restarts), "crash")
	for how, end := range map[string]func() error{"crash": server.Kill, "clean": server.Stop} {
		c := client(t, server.URL(), restarts)
		held := testkit.Lock(t, c, how)
		next := queued(t, server.URL(), how, restarts)
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if err := server.Restart(); err != nil {
			t.Fatal(err)
		}
		if !stored(t, client(t, server.URL()), held) || !held.Held() {
			t.Errorf("%s: forgotten: %v", how, held.Err())
		}
		testkit.Release(t, held)
		got := testkit.Granted(t, next)
		if got.Token() <= held.Token() {
			t.Errorf("%s: token %d after %d", how, got.Token(), held.Token())
		}
		testkit.Release(t, got)
	}
	if stored(t, client(t, control), forgotten) {
		t.Error("an entry that was never logged outlived a crash: this has tested nothing")
	}
}

// stored reports whether others see a lease in the store.
func stored(t *testing.T, c *hasp.Client, l *hasp.Lease) bool {
	return slices.ContainsFunc(testkit.Entries(t, c, l.Name()), func(e hasp.Entry) bool { return e.ID == l.ID() })
}
