package pglock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// latest is the version of the tables.
var latest = oldest - 1 + len(migrations)

// addStep makes a store that of a newer program, whose tables have one more version.
func addStep(b driver.Backend, step string) {
	n := &b.(*table).naming
	n.steps = append(slices.Clone(n.steps), step)
}

// newer is the store of a program whose tables have one version more, with one column more. It
// locks what it alters in the order in which the functions do, which may be under way.
func newer(t *testing.T, storeURL string) driver.Backend {
	t.Helper()
	b := openHere(t, storeURL)
	addStep(b, `LOCK TABLE hasp_names, hasp_entries IN ACCESS EXCLUSIVE MODE;
		ALTER TABLE hasp_entries ADD COLUMN IF NOT EXISTS added bigint NOT NULL DEFAULT 0;`)
	return b
}

// newerClient is a client of that program.
func newerClient(t *testing.T, storeURL string) *hasp.Client {
	t.Helper()
	return client(t, newer(t, storeURL))
}

// migrates has a client bring the tables up to date, and returns what it sees of a name. The disk
// may hold up one that has the tables for longer than a migration waits; then it tries again.
func migrates(t *testing.T, c *hasp.Client, name string) (q hasp.Queue) {
	t.Helper()
	until(t, "the migration", func() (err error) {
		q, err = c.Inspect(limited(t), name)
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
	base := serverURL(t, "prefix=upgrade_")
	held := lock(t, client(t, openHere(t, base)), "held")
	// A client that only reads creates nothing.
	if q, err := newerClient(t, serverURL(t, "prefix=none_")).Inspect(limited(t), "held"); err != nil || len(q.Holders) != 0 {
		t.Error(q, err)
	}
	if ask[bool](t, "SELECT to_regclass('none_schema') IS NOT NULL") {
		t.Error("reading has made tables")
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var workers sync.WaitGroup
	var rounds [4]atomic.Int64
	for i := range rounds {
		c := client(t, openHere(t, base))
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
			until(t, "the clients at work", func() error {
				if now := rounds[i].Load(); now < from+3 {
					return fmt.Errorf("%d rounds after %d", now, from)
				}
				return nil
			})
		}
	}
	work()
	// What exists is brought up to date also by a client that only reads.
	c := newerClient(t, base)
	if q := migrates(t, c, "held"); len(q.Holders)+len(q.Waiters) != 1 {
		t.Errorf("held by a client of the earlier version: %+v", q)
	}
	if v := ask[int](t, "SELECT max(version) FROM upgrade_schema"); v != latest+1 {
		t.Errorf("version %d", v)
	}
	if _, err := c.Mutex("held").TryLock(limited(t)); !errors.Is(err, hasp.ErrBusy) {
		t.Errorf("held by a client of the earlier version: %v", err)
	}
	release(t, lock(t, c, "free"))
	work()
	stop()
	workers.Wait()
	release(t, held)
	for _, migrate := range []string{"true", "false"} {
		_, err := client(t, openHere(t, base+"&migrate="+migrate)).Mutex("a").Lock(limited(t))
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "of a newer hasp, and this program knows format") {
			t.Errorf("a program of the earlier version, migrate=%s: %v", migrate, err)
		}
	}
}

// A migration that fails, here because its last statement does, leaves the tables at the version
// before and whole: its clients use them, and it can be tried again.
func TestUpgradeFails(t *testing.T) {
	t.Parallel()
	base := serverURL(t, "prefix=unfinished_")
	c := client(t, openHere(t, base))
	release(t, lock(t, c, "a"))
	b := openHere(t, base)
	addStep(b, `ALTER TABLE hasp_entries ADD COLUMN added bigint NOT NULL DEFAULT 0; SELECT 1/0;`)
	if _, _, err := b.(driver.Migrator).Migrate(t.Context()); err == nil {
		t.Fatal("a migration that divides by zero has succeeded")
	}
	if v := ask[int](t, "SELECT max(version) FROM unfinished_schema"); v != latest {
		t.Errorf("version %d after it failed", v)
	}
	release(t, lock(t, c, "a"))
	if from, to, err := newer(t, base).(driver.Migrator).Migrate(t.Context()); from != latest || to != latest+1 || err != nil {
		t.Errorf("tried again: from %d to %d, %v", from, to, err)
	}
}

// A transaction that has the tables for long (a dump) keeps them from being brought up to date.
// The migration does not wait for it: all others would wait behind, holders among them.
func TestUpgradeGivesUp(t *testing.T) {
	t.Parallel()
	base := serverURL(t, "prefix=dumped_")
	release(t, lock(t, client(t, openHere(t, base)), "a"))
	conn := connect(t, serverURL(t))
	dump := func(stmt string) {
		t.Helper()
		if _, err := conn.Exec(limited(t), stmt); err != nil {
			t.Fatalf("%s: %v", stmt, err)
		}
	}
	dump("BEGIN; SELECT FROM dumped_entries")
	c := newerClient(t, base)
	_, err := c.Mutex("a").Lock(limited(t))
	if e := new(pgconn.PgError); !errors.As(err, &e) || e.Code != "55P03" {
		t.Errorf("while a dump has the tables: %v", err)
	}
	dump("COMMIT")
	release(t, lock(t, c, "a"))
}
