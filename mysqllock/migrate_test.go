package mysqllock_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/mysqllock"
)

// The steps of a newer program: one that ends in the middle, since MySQL commits each statement
// by itself, and the same without the fault.
const (
	interrupted = "CREATE TABLE IF NOT EXISTS {p}added (a INT)\n//\nCALL {p}is_missing()\n//\nINSERT IGNORE INTO {p}schema (version) VALUES (2)\n//\n"
	repaired    = "CREATE TABLE IF NOT EXISTS {p}added (a INT)\n//\nINSERT IGNORE INTO {p}schema (version) VALUES (2)\n//\n"
)

// A migration that ends in the middle leaves the tables at the version before: clients of that
// version go on, and the migration is applied anew as a whole. After it clients of the version
// before that are at work go on, and those that come later are refused.
func TestInterruptedMigration(t *testing.T) {
	t.Parallel()
	m := backends.SharedMariaDB(t)
	base := sqlkit.With(sqlkit.MariaDBStore(t, m), "prefix=interrupted_")
	c := client(t, base)
	held := testkit.Lock(t, c, "held")
	db := sqlkit.MariaDBAdmin(t, m)
	version := func() int64 { return number(t, db, "SELECT MAX(version) FROM locks.interrupted_schema") }
	migrate := func(step string) (from, to int, err error) {
		b := testkit.Open(t, base)
		defer b.Close()
		mysqllock.AddStep(b, step)
		return b.(driver.Migrator).Migrate(ctx(t))
	}
	if _, _, err := migrate(interrupted); err == nil {
		t.Fatal("a migration that calls what is missing has succeeded")
	}
	if v := version(); v != int64(mysqllock.Latest) || number(t, db, "SELECT COUNT(*) FROM locks.interrupted_added") != 0 {
		t.Errorf("version %d after it ended in the middle", v)
	}
	testkit.Release(t, testkit.Lock(t, client(t, base), "a"))
	if from, to, err := migrate(repaired); from != mysqllock.Latest || to != mysqllock.Latest+1 || err != nil {
		t.Errorf("applied anew: from %d to %d, %v", from, to, err)
	}
	testkit.Release(t, held)
	if err := c.Do(ctx(t), "a", func(context.Context) error { return nil }); err != nil {
		t.Errorf("a client of the version before: %v", err)
	}
	for _, migrate := range []string{"true", "false"} {
		_, err := client(t, sqlkit.With(base, "migrate="+migrate)).Mutex("a").Lock(ctx(t))
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "use a newer one") {
			t.Errorf("a program of the version before, migrate=%s: %v", migrate, err)
		}
	}
}

// The tables are dropped under a client whose locks are bound to connections: the next lock makes
// them anew.
func TestTableDroppedBound(t *testing.T) {
	t.Parallel()
	m := backends.SharedMariaDB(t)
	db := sqlkit.MySQL(t, m.Addr, m.User, m.Password, "locks")
	const prefix = "again_"
	c := client(t, sqlkit.With(sqlkit.MariaDBStore(t, m), "strategy=getlock", "prefix="+prefix), hasp.WithTTL(lasting))
	last := testkit.Drawn(t, c, "a")
	for _, table := range []string{"schema", "store", "entries", "sessions", "names", "bound", "evictions"} {
		sqlkit.Exec(t, db, "DROP TABLE "+prefix+table)
	}
	if next := testkit.Drawn(t, c, "a"); next <= last {
		t.Errorf("token %d after %d", next, last)
	}
}
