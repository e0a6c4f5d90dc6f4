package pglock_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// Tables of version 1, which is no single state of them, are refused with what to do: by a lock, by
// `hasp migrate`, and by doctor.
func TestVersion1Refused(t *testing.T) {
	t.Parallel()
	serverURL := backends.SharedPostgres(t).URL()
	for _, strategy := range []string{"table", "advisory"} {
		prefix := "one_" + strategy + "_"
		storeURL := sqlkit.PostgresStore(t, "prefix="+prefix, "strategy="+strategy)
		testkit.Release(t, testkit.Lock(t, client(t, storeURL), "a"))
		sqlkit.Postgres(t, serverURL, "UPDATE locks."+prefix+"schema SET version = 1")
		refused := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "version 1") || !strings.Contains(err.Error(), "stop the clients, drop hasp's tables") {
				t.Errorf("%s, %s: %v", strategy, what, err)
			}
		}
		for _, migrate := range []string{"true", "false"} {
			refused("migrate="+migrate, client(t, sqlkit.With(storeURL, "migrate="+migrate)).Do(testkit.Context(t), "a", func(context.Context) error { return nil }))
		}
		b := testkit.Open(t, storeURL)
		defer b.Close()
		_, _, err := b.(driver.Migrator).Migrate(t.Context())
		refused("hasp migrate", err)
		if f := findings(t, storeURL)["tables"]; !strings.Contains(f.Cure, "stop the clients") {
			t.Errorf("doctor: %+v", f)
		}
	}
}

// A dump of the tables alone (pg_dump -t) has no functions, and indexes get lost. doctor names them, a
// lock and `hasp migrate` make them again, and what was held stays. A table that is missing beside
// others is not made again: with an empty one others could hold what is held.
func TestMissingMadeAgain(t *testing.T) {
	t.Parallel()
	serverURL := backends.SharedPostgres(t).URL()
	storeURL := sqlkit.PostgresStore(t, "prefix=lost_")
	migrate := func() error {
		b := testkit.Open(t, storeURL)
		defer b.Close()
		_, _, err := b.(driver.Migrator).Migrate(t.Context())
		return err
	}
	held := testkit.Lock(t, client(t, storeURL), "held")
	for what, drop := range map[string]string{
		"lost_enter":                  "DROP FUNCTION locks.lost_enter",
		"lost_obtain":                 "DROP PROCEDURE locks.lost_obtain",
		"lost_names_used_idx":         "DROP INDEX locks.lost_names_used_idx",
		"lost_entries_pkey":           "ALTER TABLE locks.lost_entries DROP CONSTRAINT lost_entries_pkey",
		"lost_entries_session_id_key": "ALTER TABLE locks.lost_entries DROP CONSTRAINT lost_entries_session_id_key",
	} {
		sqlkit.Postgres(t, serverURL, drop)
		testkit.WantFinding(t, findings(t, storeURL), "tables", driver.Bad, what+" missing")
		if err := migrate(); err != nil {
			t.Errorf("without %s: %v", what, err)
		}
		testkit.WantFinding(t, findings(t, storeURL), "tables", driver.Info, "version")
	}
	c := client(t, storeURL)
	testkit.Release(t, testkit.Lock(t, c, "a"))
	sqlkit.Postgres(t, serverURL, "DROP FUNCTION locks.lost_leave, locks.lost_enter, locks.lost_begin") // a lock makes them again
	testkit.Release(t, testkit.LockDespiteErrors(t, client(t, storeURL), "b"))
	if !held.Held() {
		t.Errorf("lost: %v", held.Err())
	}
	testkit.Release(t, held)
	sqlkit.Postgres(t, serverURL, "DROP TABLE locks.lost_evictions")
	testkit.WantFinding(t, findings(t, storeURL), "tables", driver.Bad, "lost_evictions missing")
	if err := migrate(); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "lost_evictions") || !strings.Contains(err.Error(), "stop the clients") {
		t.Errorf("without a table: %v", err)
	}
}

// A migration that stands still in its transaction for longer than the server lets it, as on a busy
// machine, is made again: the server has undone it.
func TestMigrationCutOff(t *testing.T) {
	t.Parallel()
	server := private(t)
	proxy, storeURL := testkit.Behind(t, server.URL())
	b := testkit.Open(t, storeURL)
	defer b.Close()
	conn, err := pgx.Connect(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	sessions := func(what string) func() bool {
		return func() bool {
			var n int
			if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' AND "+what).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n > 0
		}
	}
	const migrations = "(7521983763894337536)" // the lock of migrations
	if _, err := conn.Exec(t.Context(), "SELECT pg_advisory_lock"+migrations); err != nil {
		t.Fatal(err)
	}
	migrated := make(chan error, 1)
	go func() {
		_, _, err := b.(driver.Migrator).Migrate(t.Context())
		migrated <- err
	}()
	testkit.Eventually(t, "the migration waits for its lock", sessions("wait_event = 'advisory'"))
	proxy.Partition()
	if _, err := conn.Exec(t.Context(), "SELECT pg_advisory_unlock"+migrations); err != nil {
		t.Fatal(err)
	}
	idle := sessions("state = 'idle in transaction'")
	testkit.Eventually(t, "it stands still", idle)
	testkit.Eventually(t, "the server ends it", func() bool { return !idle() })
	proxy.Heal()
	if err := testkit.Await(t, "the migration", migrated); err != nil {
		t.Error(err)
	}
	testkit.Release(t, testkit.Lock(t, client(t, server.URL()), "a"))
}
