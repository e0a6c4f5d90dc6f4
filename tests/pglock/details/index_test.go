package pglock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// A migration makes an index concurrently while others wait for its lock: the server waits for the
// end of every transaction with a view of the database, and so for a slice of each waiter, which is
// much less than the half minute that a slice had. If the lock is on the migration's own
// connection, as with golang-migrate, the waiters also wait for that one: a deadlock, and an
// invalid index, if they do it for longer than deadlock_timeout.
func TestIndexWhileOthersWait(t *testing.T) {
	t.Parallel()
	server := private(t)
	sqlkit.Postgres(t, server.URL(), "CREATE TABLE indexed (n int); INSERT INTO indexed SELECT generate_series(1, 1000)")
	index := func(conn *pgx.Conn, name string) time.Duration {
		t.Helper()
		began := time.Now()
		if _, err := conn.Exec(testkit.Context(t), "CREATE INDEX CONCURRENTLY "+name+" ON indexed (n)"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !ask[bool](t, server.URL(), "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1)", name) {
			t.Errorf("%s is invalid", name)
		}
		return time.Since(began)
	}
	plain, err := pgx.Connect(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close(context.Background())
	bound := 15*time.Second + 10*index(plain, "control") // half of what such a slice was
	for i, params := range []string{"", "fence=off"} {
		name := fmt.Sprint(i + 1)
		storeURL := sqlkit.With(server.URL(), "strategy=advisory", "key=integer", params)
		waiters := func() (w []<-chan *hasp.Lease) {
			for range 3 {
				w = append(w, waits(t, server.URL(), client(t, storeURL, hasp.WithTTL(calm)), name))
			}
			return w
		}
		served := func(w []<-chan *hasp.Lease) {
			for range w {
				select { // in any order: without tables there are no positions
				case l := <-w[0]:
					testkit.Release(t, l)
				case l := <-w[1]:
					testkit.Release(t, l)
				case l := <-w[2]:
					testkit.Release(t, l)
				}
			}
		}
		held := testkit.Lock(t, client(t, storeURL, hasp.WithTTL(calm)), name)
		w := waiters()
		if took := index(plain, "apart"+name); took > bound {
			t.Errorf("%q: an index beside three waiters took %s, and without %s at most", params, took, bound)
		}
		testkit.Release(t, held)
		served(w)

		if _, err := plain.Exec(t.Context(), "SELECT pg_advisory_lock($1)", i+1); err != nil {
			t.Fatal(err)
		}
		w = waiters()
		if took := index(plain, "same"+name); took > bound {
			t.Errorf("%q: an index on the connection that has the lock took %s, and without waiters %s at most", params, took, bound)
		}
		if _, err := plain.Exec(t.Context(), "SELECT pg_advisory_unlock($1)", i+1); err != nil {
			t.Fatal(err)
		}
		served(w)
	}
}
