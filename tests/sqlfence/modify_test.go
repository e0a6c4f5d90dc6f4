//go:build unix

package sqlfence_test

import (
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/fencing/sqlfence"
)

// Many take from one stock, each by reading it and writing less: nothing is taken twice. The
// same without the version loses updates, or this would prove nothing.
func TestModifyUnderLoad(t *testing.T) {
	each(t, func(t *testing.T, d database) {
		db := d.connect(t)
		const workers, each = 6, 20
		g := newFence(t, d, db, sqlfence.Options{Tries: 1000})
		name := items(t, d, db)
		table, err := g.Table(t.Context(), db, name, "id")
		if err != nil {
			t.Fatal(err)
		}
		run := func(id int, work func() error) (stock int) {
			var all sync.WaitGroup
			for range workers {
				all.Go(func() {
					for range each {
						if err := work(); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
			if err := db.QueryRow(fmt.Sprintf("SELECT stock FROM %s WHERE id = %d", name, id)).Scan(&stock); err != nil {
				t.Fatal(err)
			}
			return stock
		}
		var calls atomic.Int32
		stock := run(1, func() error {
			var stock int
			return table.Modify(t.Context(), db, "version", sqlfence.Columns{"stock": &stock}, func() error {
				calls.Add(1)
				stock++
				return nil
			}, 1)
		})
		if stock != workers*each {
			t.Errorf("the stock is %d after %d changes", stock, workers*each)
		}
		t.Logf("%d changes took %d tries", workers*each, calls.Load())
		naive := run(2, func() error {
			var stock int
			if err := db.QueryRow("SELECT stock FROM " + name + " WHERE id = 2").Scan(&stock); err != nil {
				return err
			}
			time.Sleep(time.Millisecond) // the others read the same
			_, err := db.Exec(fmt.Sprintf("UPDATE %s SET stock = %d WHERE id = 2", name, stock+1))
			return err
		})
		if naive == workers*each {
			t.Error("control: nothing was lost without the version: this test has tested nothing")
		}
	})
}

func TestModify(t *testing.T) {
	each(t, func(t *testing.T, d database) {
		db := d.connect(t)
		g := newFence(t, d, db, sqlfence.Options{Tries: 3})
		name := items(t, d, db)
		table, err := g.Table(t.Context(), db, name, "id")
		if err != nil {
			t.Fatal(err)
		}
		var stock, version int
		state := func() (int, int) {
			if err := db.QueryRow("SELECT stock, version FROM "+name+" WHERE id = 1").Scan(&stock, &version); err != nil {
				t.Fatal(err)
			}
			return stock, version
		}
		// Another writer is faster every time.
		tries := 0
		err = table.Modify(t.Context(), db, "version", sqlfence.Columns{"stock": &stock}, func() error {
			tries++
			mustExec(t, db, "UPDATE %s SET version = version + 1 WHERE id = 1", name)
			stock = 1000
			return nil
		}, 1)
		if !errors.Is(err, fencing.ErrConflict) || tries != 3 {
			t.Errorf("%d tries, %v", tries, err)
		}
		if stock, version := state(); stock != 0 || version != 3 {
			t.Errorf("stock %d, version %d: written all the same", stock, version)
		}
		refused := errors.New("sold out")
		if err := table.Modify(t.Context(), db, "version", sqlfence.Columns{"stock": &stock}, func() error { return refused }, 1); err != refused {
			t.Errorf("an error of change: %v", err)
		}
		if err := table.Modify(t.Context(), db, "version", nil, func() error { return nil }, 99); !errors.Is(err, sqlfence.ErrNotFound) {
			t.Errorf("no such row: %v", err)
		}
		// Without columns it raises the version alone; and what stays the same counts as well.
		if err := table.Modify(t.Context(), db, "version", nil, func() error { return nil }, 1); err != nil {
			t.Error(err)
		}
		if _, version := state(); version != 4 {
			t.Errorf("version %d, want 4", version)
		}
		for _, c := range []sqlfence.Columns{{"stock = 1 --": 1}, {"Stock": 1}} {
			if err := table.Modify(t.Context(), db, "version", c, func() error { return nil }, 1); !errors.Is(err, fencing.ErrInvalid) {
				t.Errorf("columns %v: %v", c, err)
			}
		}
	})
}

// A row that already is as it should be is no stale write (MySQL counts it as none), a row
// that is not there is no stale write either.
func TestRow(t *testing.T) {
	each(t, func(t *testing.T, d database) {
		db := d.connect(t)
		g := newFence(t, d, db, sqlfence.Options{})
		name := items(t, d, db)
		table, err := g.Table(t.Context(), db, name, "id")
		if err != nil {
			t.Fatal(err)
		}
		set := func(token uint64, stock, id int) error {
			row, err := table.With(t.Context(), db, fencing.GrantOf("items", token), "fence", id)
			if err != nil {
				return err
			}
			return row.Set(t.Context(), db, sqlfence.Columns{"stock": stock})
		}
		for range 2 {
			if err := set(7, 5, 1); err != nil {
				t.Errorf("the same again: %v", err)
			}
		}
		if err := set(7, 5, 99); !errors.Is(err, sqlfence.ErrNotFound) {
			t.Errorf("no such row: %v", err)
		}
		var stale *fencing.StaleError
		if err := set(6, 5, 1); !errors.As(err, &stale) || *stale != (fencing.StaleError{Name: "items", Token: 6, Seen: 7}) {
			t.Errorf("a stale token, the same values: %v", err)
		}
		// Rows are fenced one by one: the token of one says nothing about another.
		if err := set(6, 5, 2); err != nil {
			t.Errorf("another row: %v", err)
		}
		// In a transaction that is rolled back nothing was written; the token stays, by With.
		failed := errors.New("failed")
		row, err := table.With(t.Context(), db, fencing.GrantOf("items", 8), "fence", 1)
		if err != nil {
			t.Fatal(err)
		}
		err = g.Transact(t.Context(), db, nil, func(tx *sql.Tx) error {
			return errors.Join(row.Set(t.Context(), tx, sqlfence.Columns{"stock": 99}), failed)
		})
		var stock int
		if scan := db.QueryRow("SELECT stock FROM " + name + " WHERE id = 1").Scan(&stock); !errors.Is(err, failed) || scan != nil || stock != 5 {
			t.Errorf("%v; stock %d, %v", err, stock, scan)
		}
		if err := set(7, 6, 1); !errors.Is(err, fencing.ErrStale) {
			t.Errorf("the one before: %v", err)
		}
		if err := set(8, 6, 1); err != nil {
			t.Errorf("after a rollback: %v", err)
		}
	})
}

// A transaction that has read the row before another holder's token came is told that its own is
// stale, and not that it may try again: MySQL shows it the row as it was.
func TestRowInATransactionThatHasRead(t *testing.T) {
	each(t, func(t *testing.T, d database) {
		if d.Dialect == sqlfence.SQLite {
			t.Skip("a transaction that has read keeps the file from others")
		}
		db := d.connect(t)
		g := newFence(t, d, db, sqlfence.Options{})
		name := items(t, d, db)
		table, err := g.Table(t.Context(), db, name, "id")
		if err != nil {
			t.Fatal(err)
		}
		row, err := table.With(t.Context(), db, fencing.GrantOf("items", 7), "fence", 1)
		if err != nil {
			t.Fatal(err)
		}
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		var stock int
		if err := tx.QueryRow("SELECT stock FROM " + name + " WHERE id = 1").Scan(&stock); err != nil {
			t.Fatal(err)
		}
		if _, err := table.With(t.Context(), db, fencing.GrantOf("items", 8), "fence", 1); err != nil {
			t.Fatal(err)
		}
		if err := row.Set(t.Context(), tx, sqlfence.Columns{"stock": 99}); !errors.Is(err, fencing.ErrStale) {
			t.Errorf("a token that another has overtaken: %v", err)
		}
	})
}

// Values that a column does not keep as they were written, a second time under one token: the
// row is as it should be, and MySQL counts no change.
func TestRowRounds(t *testing.T) {
	each(t, func(t *testing.T, d database) {
		db := d.connect(t)
		g, name := newFence(t, d, db, sqlfence.Options{}), fresh("rounds")
		mustExec(t, db, "CREATE TABLE %s (id int PRIMARY KEY, price real, small decimal(6,2), at timestamp NULL, fence bigint NOT NULL DEFAULT 0)", name)
		if d.Dialect == sqlfence.MySQL {
			mustExec(t, db, "ALTER TABLE %s MODIFY price FLOAT, MODIFY at DATETIME", name)
		}
		mustExec(t, db, "INSERT INTO %s (id) VALUES (1)", name)
		table, err := g.Table(t.Context(), db, name, "id")
		if err != nil {
			t.Fatal(err)
		}
		columns := sqlfence.Columns{"price": 0.1, "small": "1.23456", "at": time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)}
		seventh, err := table.With(t.Context(), db, fencing.GrantOf("n", 7), "fence", 1)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := seventh.Set(t.Context(), db, columns); err != nil {
				t.Error(err)
			}
		}
		if _, err := table.With(t.Context(), db, fencing.GrantOf("n", 8), "fence", 1); err != nil {
			t.Error(err)
		}
		if err := seventh.Set(t.Context(), db, columns); !errors.Is(err, fencing.ErrStale) {
			t.Errorf("a stale token, the same values: %v", err)
		}
		if _, err := table.With(t.Context(), db, fencing.GrantOf("n", 7), "fence", 2); !errors.Is(err, sqlfence.ErrNotFound) {
			t.Errorf("no such row: %v", err)
		}
	})
}
