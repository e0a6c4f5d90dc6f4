//go:build unix

package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/fencing/sqlfence"
)

func TestOptions(t *testing.T) {
	for _, d := range []sqlfence.Dialect{0, -1, 4} {
		if _, err := sqlfence.New(d, nil); !errors.Is(err, fencing.ErrInvalid) {
			t.Errorf("%s: %v", d, err)
		}
	}
	for _, table := range []string{"Fence", "a b", `a"; DROP TABLE x; --`, "a.b.c", ".a", "a.", strings.Repeat("n", 64), "1a", "ä"} {
		if _, err := sqlfence.New(sqlfence.SQLite, &sqlfence.Options{Table: table}); !errors.Is(err, fencing.ErrInvalid) {
			t.Errorf("table %q: %v", table, err)
		}
	}
	if _, err := sqlfence.New(sqlfence.SQLite, &sqlfence.Options{Tries: -1}); !errors.Is(err, fencing.ErrInvalid) {
		t.Error("negative tries")
	}
	g, err := sqlfence.New(sqlfence.PostgreSQL, &sqlfence.Options{Table: "locks.order"})
	if err != nil || !strings.Contains(g.Schema(), `"locks"."order"`) {
		t.Errorf("%s, %v", g.Schema(), err)
	}
}

// Many programs that start at once all find or make the table.
func TestEnsureTable(t *testing.T) {
	each(t, func(t *testing.T, d database) {
		db := d.connect(t)
		for range 5 { // which of the catalog's ways to fail a loser meets is chance
			g, err := sqlfence.New(d.Dialect, &sqlfence.Options{Table: fresh("fence")})
			if err != nil {
				t.Fatal(err)
			}
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					if err := g.EnsureTable(t.Context(), db); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			with(t, g, db, "n", 1)
		}
	})
}

// A missing table is said to be missing, by name.
func TestNoTable(t *testing.T) {
	each(t, func(t *testing.T, d database) {
		table := fresh("none")
		g, err := sqlfence.New(d.Dialect, &sqlfence.Options{Table: table})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.With(t.Context(), d.connect(t), fencing.GrantOf("n", 1)); err == nil || !strings.Contains(err.Error(), table) || errors.Is(err, fencing.ErrConflict) {
			t.Errorf("got %v", err)
		}
	})
}

// What fn returns, or its panic, rolls its writes back. The token stays: With has committed it.
func TestRollsBack(t *testing.T) {
	each(t, func(t *testing.T, d database) {
		db := d.connect(t)
		g, cells := newFence(t, d, db, sqlfence.Options{}), fresh("cells")
		mustExec(t, db, "CREATE TABLE %s (v int)", cells)
		insert := func(tx *sql.Tx) error {
			_, err := tx.ExecContext(t.Context(), "INSERT INTO "+cells+" VALUES (1)")
			return err
		}
		sixth, seventh := with(t, g, db, "n", 6), with(t, g, db, "n", 7)
		failed := errors.New("failed")
		if err := seventh.Do(t.Context(), func(tx *sql.Tx) error { return errors.Join(insert(tx), failed) }); !errors.Is(err, failed) {
			t.Errorf("got %v", err)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic is gone")
				}
			}()
			_ = seventh.Do(t.Context(), func(tx *sql.Tx) error { panic(insert(tx)) })
		}()
		if err := sixth.Do(t.Context(), insert); !errors.Is(err, fencing.ErrStale) {
			t.Errorf("token 6, after a transaction of 7 was rolled back: %v", err)
		}
		if err := seventh.Do(t.Context(), insert); err != nil {
			t.Errorf("token 7, after its transaction was rolled back: %v", err)
		}
		if n := count(t, db, cells); n != 1 {
			t.Errorf("%d rows, want 1", n)
		}
	})
}

func count(t *testing.T, db *sql.DB, table string) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM "+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// A With waits for a transaction that has compared an older token, and sees its writes; a
// transaction that begins later is refused. So "read after With" is sound.
func TestWithWaitsForTransactions(t *testing.T) {
	each(t, func(t *testing.T, d database) {
		db := d.connect(t)
		g, cells := newFence(t, d, db, sqlfence.Options{}), fresh("cells")
		mustExec(t, db, "CREATE TABLE %s (v int)", cells)
		fifth := with(t, g, db, "n", 5)
		compared, finish, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		go func() {
			done <- fifth.Do(t.Context(), func(tx *sql.Tx) error {
				close(compared)
				<-finish
				_, err := tx.ExecContext(t.Context(), "INSERT INTO "+cells+" VALUES (1)")
				return err
			})
		}()
		<-compared
		advanced := make(chan error, 1)
		go func() {
			_, err := g.With(t.Context(), db, fencing.GrantOf("n", 6))
			advanced <- err
		}()
		select {
		case err := <-advanced:
			t.Errorf("With did not wait: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
		close(finish)
		if err := <-done; err != nil {
			t.Errorf("the transaction that was first: %v", err)
		}
		if err := <-advanced; err != nil {
			t.Error(err)
		}
		if n := count(t, db, cells); n != 1 {
			t.Errorf("after the With %d rows are seen, want 1", n)
		}
		ran := false
		err := fifth.Do(t.Context(), func(*sql.Tx) error { ran = true; return nil })
		if !errors.Is(err, fencing.ErrStale) || ran {
			t.Errorf("a transaction after the With: %v, ran %t", err, ran)
		}
	})
}

// Two transactions that lock the same two rows in opposite orders. The database ends one of
// them, and Transact begins it again: both are done in the end. A plain transaction would have
// failed, which the number of runs proves.
func TestDeadlock(t *testing.T) {
	each(t, func(t *testing.T, d database) {
		if d.Dialect == sqlfence.SQLite {
			return // a transaction that writes has the whole database
		}
		db := d.connect(t)
		g, cells := newFence(t, d, db, sqlfence.Options{}), fresh("cells")
		mustExec(t, db, "CREATE TABLE %s (id int PRIMARY KEY, v int NOT NULL)", cells)
		mustExec(t, db, "INSERT INTO %s VALUES (1, 0), (2, 0)", cells)
		table, err := g.Table(t.Context(), db, cells, "id")
		if err != nil {
			t.Fatal(err)
		}
		var runs atomic.Int32
		var both, all sync.WaitGroup
		both.Add(2)
		for _, order := range [][2]int{{1, 2}, {2, 1}} {
			all.Go(func() {
				first := true
				err := g.Transact(t.Context(), db, nil, func(tx *sql.Tx) error {
					runs.Add(1)
					if err := table.Lock(t.Context(), tx, sqlfence.Forever, nil, order[0]); err != nil {
						return err
					}
					if first { // each has its first row now
						first = false
						both.Done()
						both.Wait()
					}
					if err := table.Lock(t.Context(), tx, sqlfence.Forever, nil, order[1]); err != nil {
						return err
					}
					_, err := tx.ExecContext(t.Context(), "UPDATE "+cells+" SET v = v + 1")
					return err
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if runs.Load() < 3 {
			t.Errorf("%d runs: there was no deadlock, and nothing was tested", runs.Load())
		}
		var sum int
		if err := db.QueryRowContext(t.Context(), "SELECT sum(v) FROM "+cells).Scan(&sum); err != nil || sum != 4 {
			t.Errorf("the sum is %d, %v; want 4", sum, err)
		}
	})
}

// Transactions of many lock names at once, each made for the first time: the gaps between
// rows that do not exist yet are where MySQL finds deadlocks.
func TestManyNewNames(t *testing.T) {
	each(t, func(t *testing.T, d database) {
		db := d.connect(t)
		g := newFence(t, d, db, sqlfence.Options{})
		var all sync.WaitGroup
		for i := range 6 {
			all.Go(func() {
				for j := range 20 {
					// Pairs of goroutines share names, with the same token.
					name := fmt.Sprintf("name-%d-%d", i/2, j)
					w, err := g.With(t.Context(), db, fencing.GrantOf(name, 7))
					if err == nil {
						err = w.Do(t.Context(), func(*sql.Tx) error { return nil })
					}
					if err != nil {
						t.Errorf("%s: %v", name, err)
					}
				}
			})
		}
		all.Wait()
	})
}

// When every try ends in a conflict the error says so, and the number of tries is kept.
func TestConflict(t *testing.T) {
	d := postgres(t)
	db := d.connect(t)
	g := newFence(t, d, db, sqlfence.Options{Tries: 3})
	cells := fresh("cells")
	mustExec(t, db, "CREATE TABLE %s (id int PRIMARY KEY, v int NOT NULL)", cells)
	mustExec(t, db, "INSERT INTO %s VALUES (1, 0)", cells)
	runs := 0
	err := with(t, g, db, "n", 7).DoTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead}, func(tx *sql.Tx) error {
		runs++
		mustExec(t, db, "UPDATE %s SET v = v + 1", cells) // another, each time
		_, err := tx.ExecContext(t.Context(), "UPDATE "+cells+" SET v = -1")
		return err
	})
	if !errors.Is(err, fencing.ErrConflict) || runs != 3 {
		t.Errorf("%d runs, %v", runs, err)
	}
}

// A context that ends while it waits for another's transaction is not masked.
func TestContextEndsWaiting(t *testing.T) {
	each(t, func(t *testing.T, d database) {
		// SQLite looks at the context only after its busy_timeout.
		d.DSN = strings.Replace(d.DSN, "busy_timeout(60000)", "busy_timeout(5000)", 1)
		db := d.connect(t)
		g := newFence(t, d, db, sqlfence.Options{})
		err := with(t, g, db, "n", 5).Do(t.Context(), func(*sql.Tx) error {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if _, err := g.With(ctx, db, fencing.GrantOf("n", 6)); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func BenchmarkTx(b *testing.B) {
	for name, open := range map[string]func(testing.TB) database{"postgres": postgres, "mariadb": mariadb, "sqlite": sqlite} {
		b.Run(name, func(b *testing.B) {
			d := open(b)
			db := d.connect(b)
			g, cells := newFence(b, d, db, sqlfence.Options{}), fresh("cells")
			mustExec(b, db, "CREATE TABLE %s (id int PRIMARY KEY, v int NOT NULL)", cells)
			mustExec(b, db, "INSERT INTO %s VALUES (1, 0)", cells)
			write := func(tx *sql.Tx) error {
				_, err := tx.ExecContext(b.Context(), "UPDATE "+cells+" SET v = v + 1 WHERE id = 1")
				return err
			}
			b.Run("unfenced", func(b *testing.B) {
				for b.Loop() {
					if err := g.Transact(b.Context(), db, nil, write); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run("fenced", func(b *testing.B) {
				w := with(b, g, db, "bench", 7)
				for b.Loop() {
					if err := w.Do(b.Context(), write); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

// A role that may use the table, and make none, finds it.
func TestEnsureTableWithoutCreate(t *testing.T) {
	d := mariadb(t)
	db := d.connect(t)
	g := newFence(t, d, db, sqlfence.Options{})
	table := strings.Fields(strings.ReplaceAll(g.Schema(), "`", " "))[5]
	role := fresh("role")
	mustExec(t, db, "CREATE USER %s@'%%' IDENTIFIED BY 'p'", role)
	mustExec(t, db, "GRANT SELECT, INSERT, UPDATE ON %s TO %s@'%%'", table, role)
	d.DSN = strings.Replace(d.DSN, "hasp:hasp@", role+":p@", 1)
	limited := d.connect(t)
	if err := g.EnsureTable(t.Context(), limited); err != nil {
		t.Errorf("the table is there: %v", err)
	}
	if err := with(t, g, limited, "n", 5).Do(t.Context(), func(*sql.Tx) error { return nil }); err != nil {
		t.Error(err)
	}
	none, err := sqlfence.New(d.Dialect, &sqlfence.Options{Table: fresh("none")})
	if err != nil {
		t.Fatal(err)
	}
	if err := none.EnsureTable(t.Context(), limited); err == nil {
		t.Error("made a table without the right to")
	}
}

// A database that may only be read has its table, or says that it cannot be made.
func TestEnsureTableReadOnlySQLite(t *testing.T) {
	d := sqlite(t)
	db := d.connect(t)
	g := newFence(t, d, db, sqlfence.Options{})
	d.DSN += "&mode=ro"
	if err := g.EnsureTable(t.Context(), d.connect(t)); err != nil {
		t.Errorf("the table is there: %v", err)
	}
}
