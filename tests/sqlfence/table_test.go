//go:build unix

package sqlfence_test

import (
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/fencing/sqlfence"
)

// items is a table with every kind of index, and three rows.
func items(t *testing.T, d database, db *sql.DB) string {
	t.Helper()
	name := fresh("items")
	mustExec(t, db, "CREATE TABLE %s (id int PRIMARY KEY, code varchar(40) NOT NULL, tenant int NOT NULL, slug varchar(40) NOT NULL, grp int NOT NULL, note varchar(40), stock int NOT NULL DEFAULT 0, version int NOT NULL DEFAULT 0, fence bigint NOT NULL DEFAULT 0)", name)
	mustExec(t, db, "CREATE UNIQUE INDEX %s_code ON %s (code)", name, name)
	mustExec(t, db, "CREATE UNIQUE INDEX %s_slug ON %s (tenant, slug)", name, name)
	mustExec(t, db, "CREATE INDEX %s_grp ON %s (grp)", name, name)
	if d.Dialect != sqlfence.MySQL {
		mustExec(t, db, "CREATE UNIQUE INDEX %s_partial ON %s (grp) WHERE stock > 100", name, name)
		mustExec(t, db, "CREATE UNIQUE INDEX %s_expr ON %s (lower(code))", name, name)
		mustExec(t, db, "CREATE UNIQUE INDEX %s_mixed ON %s (grp, lower(code))", name, name)
	} else {
		mustExec(t, db, "CREATE UNIQUE INDEX %s_prefix ON %s (note(3))", name, name)
	}
	if d.Dialect == sqlfence.PostgreSQL {
		mustExec(t, db, "CREATE UNIQUE INDEX %s_include ON %s (id) INCLUDE (stock)", name, name)
		mustExec(t, db, "ALTER TABLE %s ADD CONSTRAINT %s_later UNIQUE (version, id) DEFERRABLE", name, name)
	}
	for _, row := range []string{"1, '1', 1, 'a', 1, 'one'", "2, '2', 1, 'b', 1, 'two'", "3, '3', 2, 'a', 1, 'three'"} {
		mustExec(t, db, "INSERT INTO %s (id, code, tenant, slug, grp, note) VALUES (%s)", name, row)
	}
	return name
}

// Only what a unique index finds is a row; everything else could lock, or change, many.
func TestTableNeedsUniqueIndex(t *testing.T) {
	each(t, func(t *testing.T, d database) {
		db := d.connect(t)
		g := newFence(t, d, db, sqlfence.Options{})
		name := items(t, d, db)
		for _, key := range [][]string{{"id"}, {"code"}, {"tenant", "slug"}, {"slug", "tenant"}, {"grp", "id"}} {
			if _, err := g.Table(t.Context(), db, name, key...); err != nil {
				t.Errorf("%v: %v", key, err)
			}
		}
		for _, key := range [][]string{{"grp"}, {"note"}, {"tenant"}, {"slug"}, {"stock"}, {"version"}, {"grp", "stock"}, {"nosuch"}} {
			if _, err := g.Table(t.Context(), db, name, key...); !errors.Is(err, sqlfence.ErrNoIndex) {
				t.Errorf("%v: %v", key, err)
			}
		}
		if _, err := g.Table(t.Context(), db, fresh("none"), "id"); !errors.Is(err, sqlfence.ErrNoIndex) {
			t.Errorf("no such table: %v", err)
		}
		mustExec(t, db, "CREATE VIEW %s_view AS SELECT * FROM %s", name, name)
		if _, err := g.Table(t.Context(), db, name+"_view", "id"); !errors.Is(err, sqlfence.ErrNoIndex) {
			t.Errorf("a view: %v", err)
		}
		for _, key := range [][]string{nil, {""}, {"ID"}, {`id" = 1 --`}, {"a.b"}} {
			if _, err := g.Table(t.Context(), db, name, key...); !errors.Is(err, fencing.ErrInvalid) {
				t.Errorf("key %q: %v", key, err)
			}
		}
		if _, err := g.Table(t.Context(), db, name+"; DROP TABLE x", "id"); !errors.Is(err, fencing.ErrInvalid) {
			t.Errorf("a bad table: %v", err)
		}
		table, err := g.Table(t.Context(), db, name, "tenant", "slug")
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range [][]any{{}, {1}, {1, "a", 2}, {nil, "a"}, {1, struct{}{}}} {
			if err := table.Modify(t.Context(), db, "version", nil, func() error { return nil }, key...); !errors.Is(err, fencing.ErrInvalid) {
				t.Errorf("key %v: %v", key, err)
			}
		}
	})
}

// A MyISAM table has indexes and no row locks; FOR UPDATE on it does nothing.
func TestTableNeedsInnoDB(t *testing.T) {
	d := mariadb(t)
	db := d.connect(t)
	g, name := newFence(t, d, db, sqlfence.Options{}), fresh("isam")
	mustExec(t, db, "CREATE TABLE %s (id int PRIMARY KEY) ENGINE=MyISAM", name)
	if _, err := g.Table(t.Context(), db, name, "id"); !errors.Is(err, sqlfence.ErrNoIndex) {
		t.Errorf("got %v", err)
	}
}

// The trap that Table and its methods keep shut, with real locks: what InnoDB locks without an
// index, and with one that is not used because a text is compared with a number.
func TestWithoutIndexMySQLLocksAll(t *testing.T) {
	d := mariadb(t)
	db := d.connect(t)
	g := newFence(t, d, db, sqlfence.Options{})
	name := items(t, d, db)
	byCode, err := g.Table(t.Context(), db, name, "code")
	if err != nil {
		t.Fatal(err)
	}
	// other reports whether another transaction can have row 2 while tx has what it locked.
	other := func() error {
		return g.Transact(t.Context(), db, nil, func(tx *sql.Tx) error {
			return byCode.Lock(t.Context(), tx, sqlfence.NoWait, nil, "2")
		})
	}
	for _, c := range []struct {
		what string
		lock func(tx *sql.Tx) error
		want error
	}{
		{"control: by hand, no index", func(tx *sql.Tx) error {
			return tx.QueryRow("SELECT id FROM " + name + " WHERE stock = 0 AND slug = 'a' AND tenant + 0 = 1 FOR UPDATE").Scan(new(int))
		}, sqlfence.ErrLocked},
		{"control: by hand, text compared with a number", func(tx *sql.Tx) error {
			return tx.QueryRow("SELECT id FROM " + name + " WHERE code = 1 FOR UPDATE").Scan(new(int))
		}, sqlfence.ErrLocked},
		{"Lock", func(tx *sql.Tx) error { return byCode.Lock(t.Context(), tx, sqlfence.Forever, nil, "1") }, nil},
		{"Lock with a number", func(tx *sql.Tx) error {
			if err := byCode.Lock(t.Context(), tx, sqlfence.Forever, nil, 1); !errors.Is(err, fencing.ErrInvalid) {
				t.Errorf("a number for a text: %v", err)
			}
			return nil
		}, nil},
	} {
		tx, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.lock(tx); err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		if err := other(); !errors.Is(err, c.want) {
			t.Errorf("%s: another row: %v, want %v", c.what, err, c.want)
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
	}
	// The index is dropped behind our back: an error, and no lock on the whole table.
	mustExec(t, db, "DROP INDEX %s_code ON %s", name, name)
	err = g.Transact(t.Context(), db, nil, func(tx *sql.Tx) error { return byCode.Lock(t.Context(), tx, sqlfence.Forever, nil, "1") })
	if err == nil || !strings.Contains(err.Error(), name+"_code") {
		t.Errorf("after the index was dropped: %v", err)
	}
}

func TestLock(t *testing.T) {
	each(t, func(t *testing.T, d database) {
		db := d.connect(t)
		g := newFence(t, d, db, sqlfence.Options{})
		table, err := g.Table(t.Context(), db, items(t, d, db), "id")
		if err != nil {
			t.Fatal(err)
		}
		lock := func(w sqlfence.Wait, id int) error {
			return g.Transact(t.Context(), db, nil, func(tx *sql.Tx) error { return table.Lock(t.Context(), tx, w, nil, id) })
		}
		if d.Dialect == sqlfence.SQLite {
			if err := lock(sqlfence.NoWait, 1); !errors.Is(err, fencing.ErrInvalid) {
				t.Errorf("on SQLite: %v", err)
			}
			return
		}
		const bound = time.Second
		holder, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer holder.Rollback()
		var code, note string
		if err := table.Lock(t.Context(), holder, sqlfence.Forever, sqlfence.Columns{"note": &note, "code": &code}, 1); err != nil || code != "1" || note != "one" {
			t.Fatalf("scanned %q and %q, %v", code, note, err)
		}
		for what, w := range map[string]sqlfence.Wait{"no wait": sqlfence.NoWait, "skip locked": sqlfence.SkipLocked, "bounded": sqlfence.Wait(bound)} {
			start := time.Now()
			if err := lock(w, 1); !errors.Is(err, sqlfence.ErrLocked) || !strings.Contains(err.Error(), "id = 1") {
				t.Errorf("%s, a locked row: %v", what, err)
			}
			if took := time.Since(start); w == sqlfence.Wait(bound) && took < bound/2 {
				t.Errorf("%s: gave up after %s", what, took)
			}
			if err := lock(w, 2); err != nil {
				t.Errorf("%s, another row: %v", what, err)
			}
			if err := lock(w, 99); !errors.Is(err, sqlfence.ErrNotFound) {
				t.Errorf("%s, no row: %v", what, err)
			}
		}
		waited := make(chan error, 1)
		go func() { waited <- lock(sqlfence.Forever, 1) }()
		select {
		case err := <-waited:
			t.Errorf("did not wait: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
		if err := holder.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := <-waited; err != nil {
			t.Errorf("after the holder's end: %v", err)
		}
		if err := lock(sqlfence.Wait(1500*time.Microsecond), 1); !errors.Is(err, fencing.ErrInvalid) {
			t.Errorf("a bound that the database cannot keep: %v", err)
		}
	})
}

// Skipping leaves the transaction as it was, so that a worker can try the next job in it; and
// a bound is put back after its lock.
func TestLockLeavesTransactionAlone(t *testing.T) {
	for _, c := range []struct {
		open func(testing.TB) database
		show string
	}{
		{postgres, "SELECT current_setting('lock_timeout')"},
		{mariadb, "SELECT @@session.innodb_lock_wait_timeout"},
	} {
		d := c.open(t)
		t.Run(d.Dialect.String(), func(t *testing.T) {
			db := d.connect(t)
			g := newFence(t, d, db, sqlfence.Options{})
			table, err := g.Table(t.Context(), db, items(t, d, db), "id")
			if err != nil {
				t.Fatal(err)
			}
			holder, err := db.Begin()
			if err != nil {
				t.Fatal(err)
			}
			defer holder.Rollback()
			if err := table.Lock(t.Context(), holder, sqlfence.Forever, nil, 1); err != nil {
				t.Fatal(err)
			}
			err = g.Transact(t.Context(), db, nil, func(tx *sql.Tx) error {
				setting := func() (s string) {
					if err := tx.QueryRow(c.show).Scan(&s); err != nil {
						t.Fatal(err)
					}
					return s
				}
				before := setting()
				if err := table.Lock(t.Context(), tx, sqlfence.SkipLocked, nil, 1); !errors.Is(err, sqlfence.ErrLocked) {
					t.Errorf("the first job: %v", err)
				}
				if err := table.Lock(t.Context(), tx, sqlfence.Wait(2*time.Second), nil, 2); err != nil {
					t.Errorf("the second: %v", err)
				}
				if after := setting(); after != before {
					t.Errorf("the time-out was %s and is %s", before, after)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}
