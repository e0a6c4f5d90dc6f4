package pglock_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// A renewal that was delayed takes nothing back: not one that asks for less, not one that comes
// when the server's clock has been set back. And its moment is that of the writing, not that of
// its arrival, however long it waits for the table in between.
func TestRenewalTakesNothingBack(t *testing.T) {
	t.Parallel()
	migrated(t, "renewal_")
	serverURL := backends.SharedPostgres(t).URL()
	expires := func() int64 {
		return ask[int64](t, serverURL, "SELECT expires FROM locks.renewal_sessions WHERE id = 's'")
	}
	sqlkit.Postgres(t, serverURL, "SELECT locks.renewal_begin('s', 60000000, ''); SELECT locks.renewal_renew('s', 600000000, '{}', '{}')")
	far := expires()
	sqlkit.Postgres(t, serverURL, "SELECT locks.renewal_renew('s', 1000000, '{}', '{}')")
	if got := expires(); got < far {
		t.Errorf("a renewal for less took back %d µs", far-got)
	}
	now := ask[string](t, serverURL, "SELECT pg_get_functiondef('locks.renewal_now'::regproc)")
	sqlkit.Postgres(t, serverURL, "CREATE OR REPLACE FUNCTION locks.renewal_now() RETURNS bigint LANGUAGE sql VOLATILE RETURN (extract(epoch FROM clock_timestamp() - interval '1 hour') * 1000000)::bigint")
	sqlkit.Postgres(t, serverURL, "SELECT locks.renewal_renew('s', 600000000, '{}', '{}')")
	if got := expires(); got < far {
		t.Errorf("a renewal by a clock set back took back %d µs", far-got)
	}
	sqlkit.Postgres(t, serverURL, now)

	conn, err := pgx.Connect(t.Context(), serverURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), "BEGIN; LOCK TABLE locks.renewal_sessions"); err != nil {
		t.Fatal(err)
	}
	renewed := make(chan bool)
	go func() {
		sqlkit.Postgres(t, serverURL, "SELECT locks.renewal_renew('s', 900000000, '{}', '{}')")
		close(renewed)
	}()
	testkit.Eventually(t, "a renewal that waits", func() bool {
		return ask[int](t, serverURL, "SELECT count(*)::int FROM pg_locks WHERE NOT granted AND relation = 'locks.renewal_sessions'::regclass") == 1
	})
	time.Sleep(500 * time.Millisecond)
	waitedUntil := ask[int64](t, serverURL, "SELECT locks.renewal_now()")
	if _, err := conn.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	<-renewed
	if got := expires(); got < waitedUntil+900000000 {
		t.Errorf("a renewal that waited is counted from %d µs before the end of its wait", waitedUntil+900000000-got)
	}
}

// S1: the tables cannot be read or written for longer than a TTL, so that renewals wait there and
// come too late. The client that is granted the lock afterwards is alone.
func TestLateRenewals(t *testing.T) {
	t.Parallel()
	serverURL := backends.SharedPostgres(t).URL()
	for _, table := range []string{"sessions", "entries", "names"} {
		prefix := "frozen_" + table + "_"
		storeURL := sqlkit.PostgresStore(t, "prefix="+prefix)
		other := client(t, storeURL)
		held := testkit.Lock(t, client(t, storeURL, hasp.WithTTL(T)), "a")
		conn, err := pgx.Connect(t.Context(), serverURL)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), "BEGIN; LOCK TABLE locks."+prefix+table); err != nil {
			t.Fatal(err)
		}
		next := make(chan *hasp.Lease, 1)
		go func() {
			l, err := other.Mutex("a").Lock(testkit.Context(t))
			if err != nil {
				t.Error(err)
			}
			next <- l
		}()
		time.Sleep(T + T/4)
		conn.Close(t.Context())
		if table == "names" { // which renewals do not need: it is held yet, or was lost for another reason
			_ = held.Release(testkit.Context(t))
		}
		got := testkit.Granted(t, next)
		if held.Held() {
			t.Errorf("%s: two hold", table)
		}
		testkit.Release(t, got)
	}
}
