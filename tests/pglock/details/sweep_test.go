package pglock_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// due makes what there is look as if it had not been used for two days, and a minute since
// anybody cleaned up.
func due(t testing.TB, prefix string) {
	t.Helper()
	sqlkit.Postgres(t, backends.SharedPostgres(t).URL(), strings.ReplaceAll(
		"UPDATE locks.P_names SET used = used - 48; UPDATE locks.P_holders SET used = used - 48; UPDATE locks.P_queues SET used = used - 48; UPDATE locks.P_schema SET swept = 0", "P_", prefix))
}

// sweep does what a client does once in a minute, which keeps names for a day.
func sweep(t testing.TB, storeURL string) {
	t.Helper()
	u, err := url.Parse(storeURL)
	if err != nil {
		t.Fatal(err)
	}
	ask[bool](t, backends.SharedPostgres(t).URL(), "SELECT locks."+u.Query().Get("prefix")+"tidy(86400000000)")
}

// Idle names are forgotten, with what dead sessions left; those that are held or watched stay;
// tokens grow all the same.
func TestSweep(t *testing.T) {
	t.Parallel()
	storeURL := sqlkit.PostgresStore(t, "prefix=sweep_")
	c := client(t, storeURL)
	first := testkit.Lock(t, c, "idle")
	testkit.Release(t, first)
	held := testkit.Lock(t, c, "held")
	watching, stop := context.WithCancel(t.Context())
	defer stop()
	seen := make(chan struct{}, 1)
	go func() {
		for range c.Follow(watching, "watched") {
			select {
			case seen <- struct{}{}:
			default:
			}
		}
	}()
	<-seen
	serverURL := backends.SharedPostgres(t).URL()
	testkit.Eventually(t, "a watched name", func() bool { // the first event may come before
		return ask[int](t, serverURL, "SELECT count(*)::int FROM locks.sweep_names WHERE watched > 0") > 0
	})
	sqlkit.Postgres(t, serverURL, `INSERT INTO locks.sweep_sessions VALUES ('dead', 1);
		INSERT INTO locks.sweep_names VALUES ('orphaned', 2);
		INSERT INTO locks.sweep_entries VALUES ('orphaned', 2, 'dead', 'x', 1, 1, '', 0, '')`)
	due(t, "sweep_")
	sweep(t, storeURL)
	left := ask[[]string](t, serverURL, `SELECT coalesce(array_agg(name), '{}') FROM (
		SELECT name FROM locks.sweep_names UNION SELECT id FROM locks.sweep_sessions WHERE id = 'dead' UNION SELECT name FROM locks.sweep_entries ORDER BY 1) s`)
	if strings.Join(left, " ") != "held watched" || !held.Held() {
		t.Errorf("after sweeping there are %q, want the rows of what is held and of what is watched", left)
	}
	again := testkit.Lock(t, c, "idle")
	if again.Token() <= first.Token() {
		t.Errorf("token %d after %d", again.Token(), first.Token())
	}
	testkit.Release(t, held)
}

// L4: what advisory has noted of a name is forgotten as well, also while the connection
// that held it lies idle in a pool; what is held, and what is waited for, is not.
func TestSweepOfBound(t *testing.T) {
	t.Parallel()
	serverURL := backends.SharedPostgres(t).URL()
	storeURL := sqlkit.PostgresStore(t, "prefix=swept_", "strategy=advisory")
	c := client(t, storeURL)
	noted := func(name string) *hasp.Lease { // its holder is recorded
		l := testkit.Lock(t, c, "swept_"+name)
		testkit.Entries(t, c, "swept_"+name)
		listed(t, c, l)
		return l
	}
	testkit.Release(t, noted("idle"))
	held := noted("held")
	// Another program holds it: no client of ours does, but one waits.
	other, err := pgx.Connect(t.Context(), serverURL)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(context.Background())
	testkit.Release(t, noted("waited"))
	theirs := "SELECT pg_advisory_lock(key) FROM locks." + "swept_" + "holders WHERE name = '" + "swept_" + "waited'"
	if _, err := other.Exec(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	// By the name of its program: other tests have waiters at this server, too.
	next := testkit.Locking(t, client(t, sqlkit.With(storeURL, "application_name="+"swept_waiter")), "swept_waited")
	testkit.Eventually(t, "a waiter", func() bool {
		return ask[int](t, serverURL, waiting+" AND pid IN (SELECT pid FROM pg_stat_activity WHERE application_name = $1)", "swept_waiter") > 0
	})
	due(t, "swept_")
	sweep(t, storeURL)
	for table, want := range map[string]string{"holders": "held waited", "queues": "waited"} {
		left := ask[[]string](t, serverURL, fmt.Sprintf("SELECT coalesce(array_agg(replace(name, '%s', '') ORDER BY name), '{}') FROM locks.%s%s", "swept_", "swept_", table))
		if got := strings.Join(left, " "); got != want {
			t.Errorf("%s has %q after sweeping, want %q", table, got, want)
		}
	}
	other.Close(t.Context())
	testkit.Release(t, testkit.Granted(t, next))
	testkit.Release(t, held)
	testkit.Release(t, testkit.Lock(t, c, "swept_idle"))
}

// However many clients there are, one of them cleans up, once in a minute, and does not read all
// names for it. The control is a minute later.
func TestSweepIsCheap(t *testing.T) {
	t.Parallel()
	storeURL := sqlkit.PostgresStore(t, "prefix=cheap_")
	c := client(t, storeURL, hasp.WithTTL(ages)) // a renewal would remove the copies
	held := testkit.Lock(t, c, "a")
	found(t, client(t, storeURL), "a")
	serverURL := backends.SharedPostgres(t).URL()
	sqlkit.Postgres(t, serverURL, `INSERT INTO locks.cheap_names SELECT 'n' || i, 0 FROM generate_series(1, 20000) i;
		INSERT INTO locks.cheap_entries SELECT 'n' || i, 1, session, 'copy-' || i, units, capacity, owner, since, value FROM locks.cheap_entries, generate_series(1, 5000) i;
		ANALYZE locks.cheap_names; ANALYZE locks.cheap_entries`)
	if n := ask[int](t, serverURL, "SELECT count(*)::int FROM locks.cheap_entries"); n != 5001 {
		t.Fatalf("there are %d entries", n)
	}
	sqlkit.Postgres(t, serverURL, "UPDATE locks.cheap_schema SET swept = 0")
	conn, err := pgx.Connect(t.Context(), serverURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	read := func() (tuples int) {
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		if _, err := tx.Exec(t.Context(), "SELECT locks.cheap_tidy(86400000000)"); err != nil {
			t.Fatal(err)
		}
		err = tx.QueryRow(t.Context(), `SELECT sum(pg_stat_get_xact_tuples_returned(c) + pg_stat_get_xact_tuples_fetched(c))::int
			FROM unnest(ARRAY['locks.cheap_names'::regclass, 'locks.cheap_entries'::regclass]) c`).Scan(&tuples)
		if err == nil {
			err = tx.Commit(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		return tuples
	}
	if n := read(); n > 1000 {
		t.Errorf("%d of 25,000 rows were read to find nothing to clean up", n)
	}
	idle := "SELECT count(*)::int FROM locks.cheap_names WHERE name = 'idle'"
	sqlkit.Postgres(t, serverURL, "INSERT INTO locks.cheap_names (name, seq, used) VALUES ('idle', 1, 0)")
	sweep(t, storeURL)
	if ask[int](t, serverURL, idle) == 0 {
		t.Error("a client cleaned up a second time within a minute")
	}
	sqlkit.Postgres(t, serverURL, "UPDATE locks.cheap_schema SET swept = swept - 61000000")
	sweep(t, storeURL)
	if ask[int](t, serverURL, idle) != 0 {
		t.Error("no client cleaned up a minute later")
	}
	testkit.Release(t, held)
}
