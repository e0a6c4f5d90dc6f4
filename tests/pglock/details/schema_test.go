package pglock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// Many processes use an empty database for the first time at once: one creates the tables,
// and all of them work.
func TestConcurrentFirstUse(t *testing.T) {
	t.Parallel()
	storeURL := sqlkit.PostgresStore(t, "prefix=first_use_")
	var wg sync.WaitGroup
	for range 8 {
		c := client(t, storeURL)
		wg.Go(func() {
			if err := c.Do(testkit.Context(t), "first", func(context.Context) error { return nil }); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// A role that may create nothing is told what to do; when an administrator has run what is
// printed, with the grants at its end, it can use every strategy.
func TestRoleWithoutCreate(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	serverURL := backends.SharedPostgres(t).URL()
	sqlkit.Postgres(t, serverURL, "CREATE ROLE humble LOGIN")
	storeURL := sqlkit.With(as(serverURL, "humble"), "schema=humble_locks")
	_, err := client(t, storeURL).Mutex("a").Lock(testkit.Context(t))
	if !errors.Is(err, hasp.ErrInvalid) || !strings.Contains(err.Error(), "hasp migrate --print") {
		t.Fatalf("a role without CREATE: %v", err)
	}
	if _, err := client(t, sqlkit.With(storeURL, "migrate=false")).Mutex("a").Lock(testkit.Context(t)); !errors.Is(err, hasp.ErrInvalid) || !strings.Contains(err.Error(), "version 0") {
		t.Errorf("with migrate=false: %v", err)
	}
	b := testkit.Open(t, storeURL)
	defer b.Close()
	script := b.(driver.Migrator).Schema()
	sqlkit.Postgres(t, serverURL, script)
	sqlkit.Postgres(t, serverURL, script) // harmless
	if _, err := client(t, storeURL).Mutex("a").Lock(testkit.Context(t)); !errors.Is(err, hasp.ErrInvalid) || !strings.Contains(err.Error(), "grants") {
		t.Errorf("without the grants: %v", err)
	}
	_, grants, _ := strings.Cut(script, "-- For each role")
	for line := range strings.Lines(grants) {
		if g, ok := strings.CutPrefix(line, "-- GRANT"); ok {
			sqlkit.Postgres(t, serverURL, strings.Replace("GRANT"+g, "APP", "humble", 1))
		}
	}
	for _, strategy := range []string{"table", "advisory"} {
		c := client(t, sqlkit.With(storeURL, "migrate=false", "strategy="+strategy))
		testkit.Release(t, testkit.Lock(t, c, "a"))
	}
}

// Migrate says what it did, and refuses tables that a newer program has made.
func TestMigrate(t *testing.T) {
	t.Parallel()
	b := testkit.Open(t, sqlkit.PostgresStore(t, "prefix=migrate_"))
	defer b.Close()
	m := b.(driver.Migrator)
	from, latest, err := m.Migrate(t.Context())
	if from != 0 || latest == 0 || err != nil {
		t.Errorf("the first migration: from %d to %d, %v", from, latest, err)
	}
	if v := ask[int](t, backends.SharedPostgres(t).URL(), "SELECT max(version) FROM locks.migrate_schema"); v != latest {
		t.Errorf("it said that it went to version %d, and made %d", latest, v)
	}
	if from, to, err := m.Migrate(t.Context()); from != latest || to != latest || err != nil {
		t.Errorf("the second migration: from %d to %d, %v", from, to, err)
	}
	sqlkit.Postgres(t, backends.SharedPostgres(t).URL(), "INSERT INTO locks.migrate_schema VALUES (99)")
	if _, _, err := m.Migrate(t.Context()); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "99") {
		t.Errorf("newer tables: %v", err)
	}
}

// The tables are dropped: the holder is told at its next renewal, and the next use
// creates them again.
func TestTablesDropped(t *testing.T) {
	t.Parallel()
	c := client(t, sqlkit.PostgresStore(t, "prefix=dropped_"), hasp.WithTTL(calm)) // a renewal that is late must not be the first to tell
	l := testkit.Lock(t, c, "a")
	sqlkit.Postgres(t, backends.SharedPostgres(t).URL(), "DROP TABLE locks.dropped_names, locks.dropped_sessions, locks.dropped_entries, locks.dropped_schema, locks.dropped_evictions, locks.dropped_holders, locks.dropped_queues, locks.dropped_ceiling CASCADE")
	testkit.Lost(t, l, hasp.ReasonSessionGone)
	next := testkit.Lock(t, c, "a")
	if next.Token() <= l.Token() {
		t.Errorf("token %d after %d", next.Token(), l.Token())
	}
	testkit.Release(t, next)
}

// The database is reset under clients at work, as by a test's cleaner: the schema is dropped with
// all that is in it. The next use makes it anew, also for a lock that waits, and for connections
// that have used what was there; tokens grow.
func TestSchemaDropped(t *testing.T) {
	t.Parallel()
	server := private(t)
	for _, strategy := range []string{"table", "advisory"} {
		schema := "dropped_" + strategy
		storeURL := sqlkit.With(server.URL(), "strategy="+strategy, "schema="+schema)
		c, other := client(t, storeURL, hasp.WithTTL(calm)), client(t, storeURL, hasp.WithTTL(calm))
		last := testkit.Drawn(t, c, "a")
		testkit.Drawn(t, other, "a")
		for range 2 {
			held := testkit.Lock(t, c, "held")
			waiting := testkit.Locking(t, other, "held")
			sqlkit.Postgres(t, server.URL(), "DROP SCHEMA "+schema+" CASCADE")
			for _, c := range []*hasp.Client{c, other} {
				next := testkit.Drawn(t, c, "a")
				if next <= last {
					t.Errorf("%s: token %d after %d", strategy, next, last)
				}
				last = next
			}
			if strategy == "advisory" {
				lasts(t, held, 0)
				testkit.Release(t, held)
			}
			testkit.Release(t, testkit.Granted(t, waiting))
		}
	}
}

// The entry alone is deleted: the renewal counts, and misses it. A lock that stays
// beside it is the control.
func TestEntryDeleted(t *testing.T) {
	t.Parallel()
	c := client(t, sqlkit.PostgresStore(t, "prefix=deleted_"))
	gone, stays := testkit.Lock(t, c, "gone"), testkit.Lock(t, c, "stays")
	sqlkit.Postgres(t, backends.SharedPostgres(t).URL(), "DELETE FROM locks.deleted_names WHERE name = 'gone'; DELETE FROM locks.deleted_entries WHERE name = 'gone'")
	testkit.Lost(t, gone, hasp.ReasonDenied)
	lasts(t, stays, T)
	testkit.Release(t, stays)
}

// L4: a request that the network delivers after its ticket left makes an orphan. The
// session renews it like the others, finds it, and removes it. What the session
// does know stays: that is the control.
func TestOrphan(t *testing.T) {
	t.Parallel()
	c := client(t, sqlkit.PostgresStore(t, "prefix=orphan_"))
	known := testkit.Lock(t, c, "known")
	found(t, client(t, sqlkit.PostgresStore(t, "prefix=orphan_")), "known")
	serverURL := backends.SharedPostgres(t).URL()
	if n := ask[int](t, serverURL, `WITH late AS (INSERT INTO locks.orphan_entries SELECT 'orphan', 1, session, 'late', units, capacity, owner, since, value
		FROM locks.orphan_entries WHERE name = 'known' RETURNING 1) SELECT count(*)::int FROM late`); n != 1 {
		t.Fatalf("%d orphans were made", n)
	}
	testkit.Eventually(t, "the orphan removed", func() bool {
		return ask[int](t, serverURL, "SELECT count(*) FROM locks.orphan_entries WHERE name = 'orphan'") == 0
	})
	lasts(t, known, T)
	testkit.Release(t, known)
}

// Settings that are wrong are refused before any I/O, and messages show no secret.
func TestBadURLs(t *testing.T) {
	const nowhere = "postgres://user:hunter2@127.0.0.1:1/db"
	for storeURL, want := range map[string]string{
		nowhere + "?sslmode=prefer":                             "sslmode must be verify-full",
		nowhere + "?sslmode=disable&strategy=queue":             `"strategy" must be one of`,
		nowhere + "?sslmode=disable&schema=a%22b":               "schema has 1 to 63",
		nowhere + "?sslmode=disable&prefix=Hasp_":               "prefix has 1 to 40",
		nowhere + "?sslmode=disable&retention=1m":               "retention (1m0s) cannot",
		nowhere + "?sslmode=disable&poll=1ms":                   "poll (1ms) cannot",
		nowhere + "?sslmode=disable&key=rails":                  "key is for strategy=advisory",
		nowhere + "?sslmode=disable&strategy=advisory&key=md5":  "key must be hash",
		nowhere + "?sslmode=disable&fence=off":                  "fence=off is for",
		nowhere + "?sslmode=disable&connections=0":              `"connections" must be`,
		nowhere + "?sslmode=disable&sslmod=require":             `unknown parameter "sslmod"`,
		nowhere + "?sslrootcert=/does/not/exist":                "no such file",
		nowhere + "?sslmode=disable&connect_timeout=tomorrow":   "cannot be understood",
		nowhere + "?sslmode=disable":                            "refused",
		"postgres://user:hunter2@127.0.0.1:1/db?sslmode=allow":  "fall back to plaintext",
		"postgres:///db?host=/does/not/exist&sslmode=disable":   "no such file",
		"postgresql://user:hunter2@127.0.0.1:1?sslmode=disable": "refused",
	} {
		c, err := hasp.Open(t.Context(), storeURL)
		if err == nil {
			c.Close()
			t.Errorf("%s was opened", storeURL)
			continue
		}
		if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v; want %q, and no secret", storeURL, err, want)
		}
	}
}

// A server with TLS and passwords, from the URL and from a file; a URL without
// verification must say so, and a plaintext connection is refused.
func TestTLSAndPassword(t *testing.T) {
	t.Parallel()
	server := backends.StartPostgres(t, backends.PostgresOptions{Password: "hunter2", TLS: true})
	testkit.Release(t, testkit.Lock(t, client(t, server.URL()), "a"))
	for wrong, want := range map[string]error{
		strings.Replace(server.URL(), "hunter2", "guess", 1):        hasp.ErrInvalid,
		strings.Replace(server.URL(), "verify-full", "disable", 1):  hasp.ErrInvalid,
		strings.Replace(server.URL(), "sslrootcert", "passfile", 1): nil, // an unknown certificate
	} {
		_, err := hasp.Open(t.Context(), wrong)
		if err == nil || want != nil && !errors.Is(err, want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("opened with other settings than the server's: %v", err)
		}
	}
	cfg, err := pgx.ParseConfig(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	file := writeFile(t, "127.0.0.1:*:*:postgres:"+cfg.Password+"\n")
	storeURL := sqlkit.With(strings.Replace(server.URL(), ":hunter2@", "@", 1), "passfile="+file)
	testkit.Release(t, testkit.Lock(t, client(t, storeURL), "a"))
}
