package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// sliced is a client of a store whose statements wait for so long.
func sliced(t testing.TB, storeURL string, slice time.Duration, opts ...hasp.Option) *hasp.Client {
	t.Helper()
	return client(t, sqlkit.With(storeURL, "slice="+slice.String()), opts...)
}

// waits starts to lock and returns when the server says that one more waits: a server of the
// test's own, since anybody else's waiter counts too.
func waits(t testing.TB, serverURL string, c *hasp.Client, name string) <-chan *hasp.Lease {
	t.Helper()
	before := ask[int](t, serverURL, waiting)
	got := testkit.Locking(t, c, name)
	testkit.Eventually(t, "a waiter", func() bool { return ask[int](t, serverURL, waiting) > before })
	return got
}

// A waiter does not keep the database from being vacuumed: the oldest view that a waiting
// connection keeps goes on with time. The control is a plain statement that waits.
func TestWaitersAreNoBurden(t *testing.T) {
	t.Parallel()
	server := private(t)
	for _, params := range []string{"strategy=advisory", "strategy=advisory&fence=off"} {
		storeURL := sqlkit.With(server.URL(), params)
		// Long enough that a second behind it waits for the place of the first.
		const slice = 300 * time.Millisecond
		name := params
		held := testkit.Lock(t, client(t, storeURL), name)
		first := waits(t, server.URL(), sliced(t, storeURL, slice), name)
		second := waits(t, server.URL(), sliced(t, storeURL, slice), name)
		oldest := func() int64 {
			return ask[int64](t, server.URL(), `SELECT coalesce(min(backend_xmin::text::bigint), 0) FROM pg_stat_activity
				WHERE pid IN (SELECT pid FROM pg_locks WHERE NOT granted)`)
		}
		seen := oldest()
		sqlkit.Postgres(t, server.URL(), "SELECT pg_current_xact_id()")
		testkit.Eventually(t, params+": views that go on", func() bool { return oldest() > seen })
		testkit.Release(t, held)
		for range 2 { // without tables there are no positions between two slices: either comes first
			select {
			case l := <-first:
				testkit.Release(t, l)
			case l := <-second:
				testkit.Release(t, l)
			}
		}
	}

	sqlkit.Postgres(t, server.URL(), "CREATE TABLE control (n int)")
	held := testkit.Lock(t, client(t, sqlkit.With(server.URL(), "strategy=advisory&key=integer")), "7")
	control := make(chan error, 1)
	db := sqlPool(t, server.Addr)
	go func() {
		_, err := db.ExecContext(testkit.Context(t), "SELECT pg_advisory_lock(7)")
		control <- err
	}()
	testkit.Eventually(t, "the control that waits", func() bool { return ask[int](t, server.URL(), waiting) == 1 })
	xmin := "SELECT backend_xmin::text::bigint FROM pg_stat_activity WHERE query = 'SELECT pg_advisory_lock(7)'"
	before := ask[int64](t, server.URL(), xmin)
	sqlkit.Postgres(t, server.URL(), "SELECT pg_current_xact_id()")
	time.Sleep(time.Second)
	if after := ask[int64](t, server.URL(), xmin); after != before {
		t.Errorf("the view of a statement that waits has gone on from %d to %d: this test sees nothing", before, after)
	}
	testkit.Release(t, held)
	if err := <-control; err != nil {
		t.Error(err)
	}
}

// L5: no waiter loses its position by that. Some wait, for many slices; those that came later do
// not pass; and one that gives up leaves no gap.
func TestPositionsAreKept(t *testing.T) {
	t.Parallel()
	server := private(t)
	if got := order(t, server.URL(), "strategy=advisory", "advisory"); got != "[0 2 3 5 6 7]" {
		t.Errorf("served in the order %s", got)
	}
}

// order has eight wait, one after the other, two of whom give up, and returns who was served.
func order(t *testing.T, serverURL, params, name string) string {
	storeURL := sqlkit.With(serverURL, params)
	held := testkit.Lock(t, client(t, storeURL), name)
	served := make(chan int, 8)
	var done sync.WaitGroup
	var gaveUp []context.CancelFunc
	for i := range 8 {
		// Each slice is another, so that theirs end in no order.
		c := sliced(t, storeURL, time.Duration(20+(i*37)%60)*time.Millisecond)
		ctx, cancel := context.WithCancel(testkit.Context(t))
		done.Go(func() {
			l, err := c.Mutex(name).Lock(ctx)
			if err != nil {
				return
			}
			served <- i
			time.Sleep(10 * time.Millisecond)
			if err := l.Release(context.Background()); err != nil {
				t.Error(err)
			}
		})
		// Not those that wait at this moment: of the others one may be between two slices.
		testkit.Eventually(t, "a waiter's position", func() bool { return stands(t, serverURL) > i })
		if i == 1 || i == 4 {
			gaveUp = append(gaveUp, cancel)
		}
		t.Cleanup(cancel)
	}
	for _, cancel := range gaveUp {
		cancel()
	}
	testkit.Eventually(t, "two who have gone", func() bool { return stands(t, serverURL) == 6 })
	time.Sleep(300 * time.Millisecond) // many slices
	testkit.Release(t, held)
	var got []int
	for range 6 {
		select {
		case i := <-served:
			got = append(got, i)
		case <-time.After(slack):
			t.Fatalf("served only %v", got)
		}
	}
	done.Wait()
	return fmt.Sprint(got)
}

// stands counts the places that are kept.
func stands(t *testing.T, serverURL string) int {
	return ask[int](t, serverURL, `SELECT count(DISTINCT pid)::int FROM pg_locks l WHERE l.locktype = 'advisory' AND objsubid = 2 AND granted AND mode = 'ExclusiveLock'`)
}

// A try is not held up by waiters that gave up, and those that come after many that gave up do not
// go through them all.
func TestManyGaveUp(t *testing.T) {
	t.Parallel()
	server := private(t)
	storeURL := sqlkit.With(server.URL(), "strategy=advisory")
	held := testkit.Lock(t, client(t, storeURL), "advisory")
	c := client(t, storeURL)
	sqlkit.Postgres(t, server.URL(), "INSERT INTO hasp_queues VALUES ('advisory', 3000000000, 3000000000)") // more than 32 bits
	tail := func() int {
		return ask[int](t, server.URL(), "SELECT coalesce(max(tail - 3000000000), 0)::int FROM hasp_queues WHERE name = $1", "advisory")
	}
	for before := tail(); tail() < before+12; {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if _, err := c.Mutex("advisory").Lock(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		cancel()
	}
	testkit.Eventually(t, "all have given up", func() bool { return ask[int](t, server.URL(), waiting) == 0 })
	next := waits(t, server.URL(), c, "advisory")
	testkit.Eventually(t, "the gaps counted as served", func() bool {
		return ask[int](t, server.URL(), "SELECT (tail - served)::int FROM hasp_queues WHERE name = $1", "advisory") <= 9
	})
	testkit.Release(t, held)
	testkit.Release(t, testkit.Granted(t, next))
	l, err := c.Mutex("advisory").TryLock(testkit.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	testkit.Release(t, l)
}

// A client that finds many positions free counts them as served, and may then find the lock taken
// and wait for its turn to draw a position. The client that has the turn wants the same row: so the
// row is only changed with the turn as well. (The two waited for each other until the server ended
// one.)
func TestPositionsAreCountedInTurn(t *testing.T) {
	t.Parallel()
	server := private(t)
	storeURL := sqlkit.With(server.URL(), "strategy=advisory")
	held := testkit.Lock(t, client(t, storeURL), "a")
	sqlkit.Postgres(t, server.URL(), "INSERT INTO hasp_queues VALUES ('a', 9, 0)") // nine have drawn, and none waits
	exec := executor(t, server.URL())
	exec("BEGIN") // as in hasp_draw, between its two steps
	exec("SELECT hasp_turn('queue of a', 16)")
	next := waits(t, server.URL(), client(t, storeURL), "a")
	exec("SET LOCAL lock_timeout = '500ms'")
	exec("UPDATE hasp_queues SET tail = tail + 1 WHERE name = 'a'")
	exec("COMMIT")
	testkit.Release(t, held)
	testkit.Release(t, testkit.Granted(t, next))
	if n := ask[int](t, server.URL(), "SELECT (tail - served)::int FROM hasp_queues WHERE name = 'a'"); n > 11 {
		t.Errorf("%d positions are checked", n)
	}
}
