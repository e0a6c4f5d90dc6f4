package pglock_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/hasplock/hasp/internal/testkit"
)

// A hand-over looks at the front of a queue, and does not read all of it: with hundreds of waiters
// that would be most of the time in which the name is locked.
func TestFrontOfQueue(t *testing.T) {
	t.Parallel()
	server := private(t)
	testkit.Release(t, testkit.Lock(t, client(t, server.URL()), "a"))
	conn, err := pgx.Connect(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var read int64
	if _, err := conn.Exec(t.Context(), `SET plan_cache_mode = force_generic_plan; -- as our connections have it
		INSERT INTO hasp_sessions (id, expires) SELECT 's' || i, hasp_now() + 60000000 FROM generate_series(1, 2000) i;
		INSERT INTO hasp_entries (name, seq, session, id, units, capacity, owner, since, value) SELECT 'a', i, 's' || i, 'i' || i, 7, 7, '', 0, '' FROM generate_series(1, 2000) i;
		ANALYZE hasp_entries; ANALYZE hasp_sessions`); err != nil {
		t.Fatal(err)
	}
	if err := conn.QueryRow(t.Context(), `WITH w AS MATERIALIZED (SELECT w.o_denied FROM hasp_walk('a', 0::bigint, 0::bigint, '') w)
		SELECT sum(pg_stat_get_xact_tuples_returned(c.oid) + pg_stat_get_xact_tuples_fetched(c.oid))::bigint FROM w, pg_class c
		WHERE c.relname IN ('hasp_entries', 'hasp_sessions') AND w.o_denied = 2`).Scan(&read); err != nil || read > 200 {
		t.Errorf("%d rows of 4000 were read, %v", read, err)
	}
}
