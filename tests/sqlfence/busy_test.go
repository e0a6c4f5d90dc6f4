//go:build unix

package sqlfence_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"

	modernc "modernc.org/sqlite"

	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/fencing/sqlfence"
)

func init() { sql.Register("plain-sqlite", plainDriver{&modernc.Driver{}}) }

// plainDriver is a driver of SQLite that sends BEGIN, COMMIT and ROLLBACK and does nothing more, as
// some do: the one that it is made of rolls back after a COMMIT that was refused.
type plainDriver struct{ driver.Driver }

func (d plainDriver) Open(name string) (driver.Conn, error) {
	c, err := d.Driver.Open(name)
	return plainConn{c}, err
}

type plainConn struct{ driver.Conn }

func (c plainConn) exec(text string) error {
	_, err := c.Conn.(driver.ExecerContext).ExecContext(context.Background(), text, nil)
	return err
}

func (c plainConn) Begin() (driver.Tx, error) { return c, c.exec("BEGIN") }
func (c plainConn) Commit() error             { return c.exec("COMMIT") }
func (c plainConn) Rollback() error           { return c.exec("ROLLBACK") }

// A COMMIT of SQLite is refused while another connection reads, and leaves the transaction open:
// what it wrote is rolled back, and the pool's connection is of use to the next caller. That holds
// for Do and for Transact, and for drivers that leave the transaction as it is.
func TestBusyCommitInSQLite(t *testing.T) {
	for _, name := range []string{"sqlite", "plain-sqlite"} {
		t.Run(name, func(t *testing.T) {
			d := sqlite(t)
			d.Driver = name
			d.DSN, _, _ = strings.Cut(d.DSN, "?") // no write-ahead log, with which readers disturb no writer
			busyCommit(t, d)
		})
	}
}

func busyCommit(t *testing.T, d database) {
	db, reader := d.connect(t), d.connect(t)
	db.SetMaxOpenConns(1)
	g := newFence(t, d, db, sqlfence.Options{Tries: 1})
	mustExec(t, db, "CREATE TABLE written (n integer)")
	mustExec(t, db, "INSERT INTO written VALUES (0), (0)")
	w := with(t, g, db, "n", 7)
	write := func(tx *sql.Tx) error {
		_, err := tx.ExecContext(t.Context(), "INSERT INTO written VALUES (1)")
		return err
	}
	for name, do := range map[string]func() error{
		"Do":       func() error { return w.Do(t.Context(), write) },
		"Transact": func() error { return g.Transact(t.Context(), db, nil, write) },
	} {
		mustExec(t, db, "DELETE FROM written WHERE n = 1")
		rows, err := reader.QueryContext(t.Context(), "SELECT n FROM written")
		if err != nil || !rows.Next() {
			t.Fatal(err)
		}
		if err := do(); !errors.Is(err, fencing.ErrConflict) {
			t.Fatalf("%s while another reads: %v: this tests nothing", name, err)
		}
		if err := rows.Close(); err != nil {
			t.Fatal(err)
		}
		if err := do(); err != nil {
			t.Fatalf("%s after that: %v", name, err)
		}
		var n int
		if err := reader.QueryRowContext(t.Context(), "SELECT count(*) FROM written WHERE n = 1").Scan(&n); err != nil || n != 1 {
			t.Errorf("%s has written %d times: %v", name, n, err)
		}
	}
}
