package pglock_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// Behind a pooler, a client that gives up amid a statement cancels nothing: PgBouncer can die of
// a cancel request whose sender goes away, and all its clients with it. The control, pgx by
// itself, sends one. What was left running ends by itself: the name can be locked after.
func TestNothingCancelledThroughPooler(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	server := private(t)
	for _, mode := range []string{"transaction", "session"} {
		pool := backends.StartPgBouncer(t, server, mode)
		told := func(what string) int { return strings.Count(pool.Logs(), what) }
		gone := func() int { return told("closing because: client close request") }
		c := client(t, pool.URL())
		testkit.Release(t, testkit.Lock(t, c, mode))

		before := gone()
		holds(t, server.URL(), mode, func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
			defer cancel()
			if _, err := c.Mutex(mode).Lock(ctx); err == nil {
				t.Errorf("%s: locked a name whose row is held", mode)
			}
			// pgx says goodbye after its request to cancel was answered, so that is in the log.
			testkit.Eventually(t, "the pooler sees the client go", func() bool { return gone() > before })
		})
		if n := told("cancel request"); n != 0 {
			t.Errorf("%s: PgBouncer was asked %d times to cancel:\n%s", mode, n, pool.Logs())
		}
		testkit.Release(t, testkit.Lock(t, c, mode))

		conn, err := pgx.Connect(t.Context(), pool.URL())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/4)
		defer cancel()
		if _, err := conn.Exec(ctx, "SELECT pg_sleep(20)"); err == nil {
			t.Error("the control outlasted its context")
		}
		testkit.Eventually(t, "the control's request to cancel", func() bool { return told("cancel request") > 0 })
	}
}

// holds keeps a name's row for as long as do takes.
func holds(t *testing.T, serverURL, name string, do func()) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), serverURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), "BEGIN; SELECT FROM hasp_names WHERE name = '"+name+"' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	do()
}

// A pooler in session mode gives a process of the server, whose number is in the record of a
// holder, to another client. If that locks the same name on it, the record is this client's from
// the beginning.
func TestRecordsBehindPooler(t *testing.T) {
	t.Parallel()
	server := private(t)
	store := sqlkit.With(backends.StartPgBouncer(t, server, "session").URL(), "strategy=advisory")
	holder := func(name string) int {
		return ask[int](t, server.URL(), "SELECT pid FROM hasp_holders WHERE name = $1", name)
	}
	first, second := client(t, store), client(t, store)
	testkit.Release(t, testkit.Lock(t, second, "b")) // has the connections that it needs beside those of its locks
	l := recordedLock(t, server, first, "a")
	pid := holder("a")
	testkit.Release(t, l)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the process is the pooler's again", func() bool {
		return ask[int](t, server.URL(), "SELECT count(*)::int FROM pg_stat_activity WHERE pid = $1 AND state = 'idle' AND query = 'DISCARD ALL'", pid) == 1
	})
	for i := 0; ; i++ { // each takes another process, until one has that
		if i > 15 {
			t.Fatalf("no lock was given process %d", pid)
		}
		name := fmt.Sprint("b", i)
		if l := recordedLock(t, server, second, name); holder(name) == pid {
			testkit.Release(t, l) // and is kept for the next
			break
		}
	}
	l = testkit.Lock(t, second, "a")
	if id := ask[string](t, server.URL(), "SELECT id FROM hasp_holders WHERE name = 'a'"); id != l.ID() {
		t.Errorf("%s holds, and %s is recorded", l.ID(), id)
	}
	if now := holder("a"); now != pid {
		t.Errorf("process %d, and before it was %d: this test has seen nothing", now, pid)
	}
	testkit.Release(t, l)
}
