package pglock_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
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
