package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/pglock"
)

// newer is the store of a program whose tables have one version more, with one column more. It
// locks what it alters in the order in which the functions do, which may be under way.
func newer(t *testing.T, storeURL string) driver.Backend {
	t.Helper()
	b := testkit.Open(t, storeURL)
	t.Cleanup(func() { b.Close() })
	pglock.AddStep(b, `LOCK TABLE hasp_names, hasp_entries IN ACCESS EXCLUSIVE MODE;
		ALTER TABLE hasp_entries ADD COLUMN IF NOT EXISTS added bigint NOT NULL DEFAULT 0;`)
	return b
}

// newerClient is a client of that program.
func newerClient(t *testing.T, storeURL string) *hasp.Client {
	t.Helper()
	c, err := hasp.New(newer(t, storeURL), hasp.WithTTL(calm))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// migrates has a client bring the tables up to date, and returns what it sees of a name. The disk
// may hold up one that has the tables for longer than a migration waits; then it tries again.
func migrates(t *testing.T, c *hasp.Client, name string) (q hasp.Queue) {
	t.Helper()
	testkit.Until(t, "the migration", func() (err error) {
		q, err = c.Inspect(testkit.Context(t), name)
		if e := new(pgconn.PgError); err != nil && (!errors.As(err, &e) || e.Code != "55P03") {
			t.Fatal(err)
		}
		return err
	})
	return q
}

// Tables of an earlier version are brought up to date while its clients are at work: those go on,
// and exclude the clients of the newer version; a program of the earlier version that comes later
// is refused. The server may undo a request that waits for the migration while that waits for it;
// the client asks again.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	serverURL := backends.SharedPostgres(t).URL()
	base := sqlkit.PostgresStore(t, "prefix=upgrade_")
	held := testkit.Lock(t, client(t, base), "held")
	// A client that only reads creates nothing.
	if q := testkit.Entries(t, newerClient(t, sqlkit.PostgresStore(t, "prefix=none_")), "held"); len(q) != 0 {
		t.Error(q)
	}
	if ask[bool](t, serverURL, "SELECT to_regclass('locks.none_schema') IS NOT NULL") {
		t.Error("reading has made tables")
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var workers sync.WaitGroup
	var rounds [4]atomic.Int64
	for i := range rounds {
		c := client(t, base)
		workers.Go(func() {
			for ctx.Err() == nil {
				err := c.Do(ctx, fmt.Sprint("worker-", i%2), func(context.Context) error { return nil })
				if err != nil && ctx.Err() == nil {
					t.Errorf("a client of the earlier version: %v", err)
					return
				}
				rounds[i].Add(1)
			}
		})
	}
	work := func() {
		t.Helper()
		for i := range rounds {
			from := rounds[i].Load()
			testkit.Eventually(t, "the clients at work", func() bool { return rounds[i].Load() >= from+3 })
		}
	}
	work()
	// What exists is brought up to date also by a client that only reads.
	c := newerClient(t, base)
	if q := migrates(t, c, "held"); len(q.Holders)+len(q.Waiters) != 1 {
		t.Errorf("held by a client of the earlier version: %+v", q)
	}
	if v := ask[int](t, serverURL, "SELECT max(version) FROM locks.upgrade_schema"); v != pglock.Latest+1 {
		t.Errorf("version %d", v)
	}
	if _, err := c.Mutex("held").TryLock(testkit.Context(t)); !errors.Is(err, hasp.ErrBusy) {
		t.Errorf("held by a client of the earlier version: %v", err)
	}
	testkit.Release(t, testkit.Lock(t, c, "free"))
	work()
	stop()
	workers.Wait()
	testkit.Release(t, held)
	for _, migrate := range []string{"true", "false"} {
		_, err := client(t, sqlkit.With(base, "migrate="+migrate)).Mutex("a").Lock(testkit.Context(t))
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "newer than this program") {
			t.Errorf("a program of the earlier version, migrate=%s: %v", migrate, err)
		}
	}
}

// A migration that fails, here because its last statement does, leaves the tables at the version
// before and whole: its clients use them, and it can be tried again.
func TestUpgradeFails(t *testing.T) {
	t.Parallel()
	serverURL := backends.SharedPostgres(t).URL()
	base := sqlkit.PostgresStore(t, "prefix=unfinished_")
	c := client(t, base)
	testkit.Release(t, testkit.Lock(t, c, "a"))
	b := testkit.Open(t, base)
	defer b.Close()
	pglock.AddStep(b, `ALTER TABLE hasp_entries ADD COLUMN added bigint NOT NULL DEFAULT 0; SELECT 1/0;`)
	if _, _, err := b.(driver.Migrator).Migrate(t.Context()); err == nil {
		t.Fatal("a migration that divides by zero has succeeded")
	}
	if v := ask[int](t, serverURL, "SELECT max(version) FROM locks.unfinished_schema"); v != pglock.Latest {
		t.Errorf("version %d after it failed", v)
	}
	testkit.Release(t, testkit.Lock(t, c, "a"))
	if from, to, err := newer(t, base).(driver.Migrator).Migrate(t.Context()); from != pglock.Latest || to != pglock.Latest+1 || err != nil {
		t.Errorf("tried again: from %d to %d, %v", from, to, err)
	}
}

// A transaction that has the tables for long (a dump) keeps them from being brought up to date.
// The migration does not wait for it: all others would wait behind, holders among them.
func TestUpgradeGivesUp(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	base := sqlkit.PostgresStore(t, "prefix=dumped_")
	testkit.Release(t, testkit.Lock(t, client(t, base), "a"))
	dump := executor(t, backends.SharedPostgres(t).URL())
	dump("BEGIN; SELECT FROM locks.dumped_entries")
	c := newerClient(t, base)
	_, err := c.Mutex("a").Lock(testkit.Context(t))
	if e := new(pgconn.PgError); !errors.As(err, &e) || e.Code != "55P03" {
		t.Errorf("while a dump has the tables: %v", err)
	}
	dump("COMMIT")
	testkit.Release(t, testkit.Lock(t, c, "a"))
}
