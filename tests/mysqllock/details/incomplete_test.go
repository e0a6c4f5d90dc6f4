package mysqllock_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// Tables of version 1, which is no single state of them, are refused with what to do: by a lock, by
// `hasp migrate`, and by doctor; also where a cleaner has emptied them, and the row that says so.
func TestVersion1Refused(t *testing.T) {
	t.Parallel()
	m := backends.SharedMariaDB(t)
	db := sqlkit.MySQL(t, m.Addr, m.User, m.Password, "locks")
	for _, strategy := range []string{"table", "getlock"} {
		prefix := "one_" + strategy + "_"
		storeURL := sqlkit.With(sqlkit.MariaDBStore(t, m), "prefix="+prefix, "strategy="+strategy)
		testkit.Release(t, testkit.Lock(t, client(t, storeURL), "a"))
		sqlkit.Exec(t, db, "UPDATE "+prefix+"schema SET version = 1")
		sqlkit.Exec(t, db, "DROP PROCEDURE "+prefix+"enter_2")
		sqlkit.Exec(t, db, "CREATE PROCEDURE "+prefix+"enter_1() SELECT 1")
		for _, when := range []string{"there", "emptied"} {
			refused := func(what string, err error) {
				t.Helper()
				if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "version 1") || !strings.Contains(err.Error(), "stop the clients, drop hasp's tables") {
					t.Errorf("%s, %s, %s: %v", strategy, when, what, err)
				}
			}
			refused("a lock", client(t, storeURL).Do(ctx(t), "a", func(context.Context) error { return nil }))
			b := testkit.Open(t, storeURL)
			defer b.Close()
			_, _, err := b.(driver.Migrator).Migrate(ctx(t))
			refused("hasp migrate", err)
			sqlkit.Exec(t, db, "DELETE FROM "+prefix+"schema")
		}
		sqlkit.Exec(t, db, "INSERT INTO "+prefix+"schema VALUES (1)")
		refusedBy := client(t, sqlkit.With(storeURL, "migrate=false")).Do(ctx(t), "a", func(context.Context) error { return nil })
		if !errors.Is(refusedBy, driver.ErrInvalid) || !strings.Contains(refusedBy.Error(), "stop the clients") {
			t.Errorf("%s, migrate=false: %v", strategy, refusedBy)
		}
		if !told(findings(t, storeURL), driver.Warn, "tables", "version 1") {
			t.Errorf("doctor: %+v", findings(t, storeURL))
		}
	}
}

// A dump of the tables alone (mysqldump without --routines) has no procedures, and indexes get lost.
// doctor names them, `hasp migrate` and the next lock make them again, and what was held stays. A
// table that is missing beside others is not made again: with an empty one others could hold what is
// held.
func TestMissingMadeAgain(t *testing.T) {
	t.Parallel()
	m := backends.SharedMariaDB(t)
	db := sqlkit.MySQL(t, m.Addr, m.User, m.Password, "locks")
	storeURL := sqlkit.With(sqlkit.MariaDBStore(t, m), "prefix=lost_")
	migrate := func() error {
		b := testkit.Open(t, storeURL)
		defer b.Close()
		_, _, err := b.(driver.Migrator).Migrate(ctx(t))
		return err
	}
	held := testkit.Lock(t, client(t, storeURL), "held")
	for what, drop := range map[string]string{
		"lost_enter_2":                  "DROP PROCEDURE lost_enter_2",
		"used of lost_names":            "ALTER TABLE lost_names DROP INDEX used",
		"id of lost_entries":            "ALTER TABLE lost_entries DROP INDEX id",
		"primary of lost_bound":         "ALTER TABLE lost_bound DROP PRIMARY KEY",
		"lost_entry_of of lost_entries": "ALTER TABLE lost_entries DROP FOREIGN KEY lost_entry_of",
	} {
		sqlkit.Exec(t, db, drop)
		if !told(findings(t, storeURL), driver.Bad, "tables", what+" missing") {
			t.Errorf("doctor does not say that %s is missing: %+v", what, findings(t, storeURL))
		}
		if err := migrate(); err != nil {
			t.Errorf("without %s: %v", what, err)
		}
		if told(findings(t, storeURL), driver.Bad, "tables", "") {
			t.Errorf("after the migration doctor says %+v", findings(t, storeURL))
		}
	}
	testkit.Release(t, testkit.Lock(t, client(t, storeURL), "a"))
	sqlkit.Exec(t, db, "DROP PROCEDURE lost_open_2") // a lock makes it again
	testkit.Release(t, testkit.LockDespiteErrors(t, client(t, storeURL), "b"))
	if !held.Held() {
		t.Errorf("lost: %v", held.Err())
	}
	testkit.Release(t, held)
	sqlkit.Exec(t, db, "DROP TABLE lost_evictions")
	if !told(findings(t, storeURL), driver.Bad, "tables", "lost_evictions missing") {
		t.Errorf("doctor does not miss the table: %+v", findings(t, storeURL))
	}
	if err := migrate(); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "lost_evictions") || !strings.Contains(err.Error(), "stop the clients") {
		t.Errorf("without a table: %v", err)
	}
}
