//go:build unix

package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/fencing/sqlfence"
)

// A holder's function ignores a deadlock, with which InnoDB has ended its transaction; a newer
// holder advances, which nothing blocks any more; and then the function writes on. S3: nothing of
// that is applied, and Do says so. The control writes the same in a separate transaction.
func TestIgnoredDeadlock(t *testing.T) {
	d := mariadb(t)
	db := d.connect(t)
	g, cells, ballast := newFence(t, d, db, sqlfence.Options{}), fresh("cells"), fresh("ballast")
	mustExec(t, db, "CREATE TABLE %s (id int PRIMARY KEY, v int NOT NULL)", cells)
	mustExec(t, db, "CREATE TABLE %s (v int)", ballast)
	mustExec(t, db, "INSERT INTO %s VALUES (1, 0), (2, 0), (3, 0)", cells)
	stale := func(token uint64) func(tx *sql.Tx) error {
		return func(tx *sql.Tx) error {
			update := func(tx *sql.Tx, id, v int) error {
				_, err := tx.Exec("UPDATE "+cells+" SET v = ? WHERE id = ?", v, id)
				return err
			}
			if err := update(tx, 1, 1); err != nil {
				return err
			}
			other, err := db.Begin()
			if err != nil {
				return err
			}
			defer other.Rollback()
			// InnoDB ends the one that has changed less.
			if _, err := other.Exec("INSERT INTO " + ballast + " SELECT seq FROM seq_1_to_1000"); err != nil {
				return err
			}
			if err := update(other, 2, 2); err != nil {
				return err
			}
			blocked := make(chan error, 1)
			go func() { blocked <- update(other, 1, 2) }()
			if err := update(tx, 2, 1); err == nil || !strings.Contains(err.Error(), "1213") {
				t.Errorf("there was no deadlock: %v", err)
			}
			if err := <-blocked; err != nil {
				return err
			}
			if err := other.Commit(); err != nil {
				return err
			}
			if _, err := g.With(t.Context(), db, fencing.GrantOf("n", token+1)); err != nil {
				return err
			}
			return update(tx, 3, 99)
		}
	}
	written := func() (v int) {
		if err := db.QueryRow("SELECT v FROM " + cells + " WHERE id = 3").Scan(&v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	fifth := with(t, g, db, "n", 5)
	if err := fifth.Do(t.Context(), stale(5)); !errors.Is(err, sqlfence.ErrEnded) {
		t.Errorf("Do: %v", err)
	}
	if v := written(); v != 0 {
		t.Errorf("a stale write was applied: %d", v)
	}
	// The function without the errors that it ignores is refused, or runs, as ever.
	if err := fifth.Do(t.Context(), func(*sql.Tx) error { return nil }); !errors.Is(err, fencing.ErrStale) {
		t.Errorf("a stale token: %v", err)
	}
	// The control: comparing alone, in a transaction of the program's.
	sixth := with(t, g, db, "n", 6)
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if err := sixth.Check(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	if err := stale(6)(tx); err != nil {
		t.Error(err)
	}
	if err := tx.Commit(); err != nil || written() != 99 {
		t.Errorf("%v, and the cell has %d: nothing stale was written without Do, and this has tested nothing", err, written())
	}
}

// A statement that commits on its own ends the transaction in its middle: what came before it is
// written, under the token, what comes after it is not, and Do says so. PostgreSQL and SQLite have
// such statements in the transaction like any other.
func TestStatementThatCommits(t *testing.T) {
	each(t, func(t *testing.T, d database) {
		db := d.connect(t)
		g := newFence(t, d, db, sqlfence.Options{})
		statements := []string{"CREATE TABLE %s (v int)"}
		if d.Dialect == sqlfence.MySQL {
			statements = append(statements, "TRUNCATE TABLE %[2]s", "START TRANSACTION", "COMMIT")
		}
		for i, statement := range statements {
			cells, other := fresh("cells"), fresh("other")
			mustExec(t, db, "CREATE TABLE %s (v int)", cells)
			mustExec(t, db, "CREATE TABLE %s_there (v int)", other)
			text := strings.NewReplacer("%s", other, "%[2]s", other+"_there").Replace(statement)
			err := with(t, g, db, "n", uint64(i+1)).Do(t.Context(), func(tx *sql.Tx) error {
				for _, text := range []string{"INSERT INTO " + cells + " VALUES (1)", text, "INSERT INTO " + cells + " VALUES (2)"} {
					if _, err := tx.Exec(text); err != nil {
						return err
					}
				}
				return nil
			})
			want, rows := error(nil), 2
			if d.Dialect == sqlfence.MySQL {
				want, rows = sqlfence.ErrEnded, 1
			}
			if !errors.Is(err, want) || count(t, db, cells) != rows {
				t.Errorf("%s: %v, %d rows; want %v, %d", text, err, count(t, db, cells), want, rows)
			}
		}
	})
}

// SQLite ends a transaction by itself only where a statement asks for it, and then fails at the
// commit. What came after it is written: there is nothing that could keep it.
func TestSQLiteRollsBackByItself(t *testing.T) {
	d := sqlite(t)
	db := d.connect(t)
	g, cells := newFence(t, d, db, sqlfence.Options{}), fresh("cells")
	mustExec(t, db, "CREATE TABLE %s (v int PRIMARY KEY)", cells)
	mustExec(t, db, "INSERT INTO %s VALUES (1)", cells)
	err := with(t, g, db, "n", 5).Do(t.Context(), func(tx *sql.Tx) error {
		if _, err := tx.Exec("INSERT OR ROLLBACK INTO " + cells + " VALUES (1)"); err == nil {
			t.Error("no conflict: this has tested nothing")
		}
		_, err := tx.Exec("INSERT INTO " + cells + " VALUES (2)")
		return err
	})
	if err == nil {
		t.Error("Do is content with a transaction that was rolled back in its middle")
	}
}

// After any end of a transaction its connection returns to the pool unchanged.
func TestAutocommitIsPutBack(t *testing.T) {
	for _, setting := range []string{"", "?autocommit=0"} {
		d := mariadb(t)
		db := d.connect(t)
		g := newFence(t, d, db, sqlfence.Options{}) // in the usual mode
		with(t, g, db, "n", 5)
		d.DSN += setting
		db = d.connect(t)
		db.SetMaxOpenConns(1)
		var before, after int
		ask := func(into *int) {
			t.Helper()
			if err := db.QueryRow("SELECT @@autocommit").Scan(into); err != nil {
				t.Fatal(err)
			}
		}
		ask(&before)
		w := with(t, g, db, "n", 5)
		cells := fresh("cells")
		mustExec(t, db, "CREATE TABLE %s (v int)", cells)
		failed := errors.New("failed")
		for what, fn := range map[string]func(tx *sql.Tx) error{
			"nothing":    func(*sql.Tx) error { return nil },
			"an error":   func(tx *sql.Tx) error { _, _ = tx.Exec("INSERT INTO " + cells + " VALUES (1)"); return failed },
			"a commit":   func(tx *sql.Tx) error { return tx.Commit() },
			"a rollback": func(tx *sql.Tx) error { return tx.Rollback() },
			"a panic":    func(*sql.Tx) error { panic("at the disco") },
			"an end":     func(tx *sql.Tx) error { _, err := tx.Exec("COMMIT"); return err },
		} {
			func() {
				defer func() { _ = recover() }()
				_ = w.Do(t.Context(), fn)
			}()
			if ask(&after); after != before {
				t.Errorf("after %s autocommit is %d, and was %d", what, after, before)
			}
		}
		over, cancel := context.WithCancel(t.Context())
		_ = w.Do(over, func(*sql.Tx) error { cancel(); return nil })
		if ask(&after); after != before {
			t.Errorf("after the end of its context autocommit is %d, and was %d", after, before)
		}
		if n := count(t, db, cells); n != 0 {
			t.Errorf("%d rows were written by a transaction that failed", n)
		}
	}
}
