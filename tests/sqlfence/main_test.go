//go:build unix

package sqlfence_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/fencing/sqlfence"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/fencetest"
	_ "github.com/hasplock/hasp/redislock"
)

func TestMain(m *testing.M) { fencetest.Main(m, open) }

// database is a real one, and what it is called in tables of tests.
type database struct {
	Dialect sqlfence.Dialect
	Driver  string
	DSN     string
}

func (d database) connect(t testing.TB) *sql.DB {
	t.Helper()
	db, err := sql.Open(d.Driver, d.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// each runs a test on every database, one after the other unless the test says otherwise.
func each(t *testing.T, test func(t *testing.T, d database)) {
	for _, c := range []struct {
		name string
		open func(testing.TB) database
	}{
		{"postgres", postgres}, {"mariadb", mariadb}, {"sqlite", sqlite},
	} {
		t.Run(c.name, func(t *testing.T) { test(t, c.open(t)) })
	}
}

func postgres(t testing.TB) database {
	return database{sqlfence.PostgreSQL, "pgx", backends.SharedPostgres(t).URL()}
}

func mariadb(t testing.TB) database {
	m := backends.SharedMariaDB(t)
	c := mysql.NewConfig()
	c.Net, c.Addr, c.User, c.Passwd, c.DBName = "tcp", m.Addr, m.User, m.Password, m.Database
	return database{sqlfence.MySQL, "mysql", c.FormatDSN()}
}

func sqlite(t testing.TB) database {
	// Most programs with a write-ahead log use synchronous=normal.
	file := filepath.Join(t.TempDir(), "test.db")
	return database{sqlfence.SQLite, "sqlite", "file:" + file + "?_pragma=journal_mode(wal)&_pragma=synchronous(normal)&_pragma=busy_timeout(60000)"}
}

// fresh is a name for a table that no other test has.
func fresh(prefix string) string { return prefix + "_" + strings.ToLower(rand.Text()[:10]) }

// newFence makes a fence with a separate table.
func newFence(t testing.TB, d database, db *sql.DB, o sqlfence.Options) *sqlfence.Fence {
	t.Helper()
	o.Table = fresh("fence")
	g, err := sqlfence.New(d.Dialect, &o)
	if err == nil {
		err = g.EnsureTable(t.Context(), db)
	}
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// with advances, and returns what must be there.
func with(t testing.TB, g *sqlfence.Fence, db *sql.DB, name string, token uint64) *sqlfence.Writer {
	t.Helper()
	w, err := g.With(t.Context(), db, fencing.GrantOf(name, token))
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// place is a target of fencetest: tables in a database, and how they are fenced.
type place struct {
	database
	Suffix    string
	Isolation sql.IsolationLevel
	OwnColumn bool // the token is in the rows themselves
}

func (p place) String() string {
	p.Suffix = fresh("")
	b, err := json.Marshal(p)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func open(ctx context.Context, target string) (fencetest.Resource, error) {
	var p place
	if err := json.Unmarshal([]byte(target), &p); err != nil {
		return nil, err
	}
	g, err := sqlfence.New(p.Dialect, &sqlfence.Options{Table: "fence" + p.Suffix})
	if err != nil {
		return nil, err
	}
	db, err := sql.Open(p.Driver, p.DSN)
	if err != nil {
		return nil, err
	}
	if err := g.EnsureTable(ctx, db); err != nil {
		return nil, err
	}
	cells := "cells" + p.Suffix
	name := map[sqlfence.Dialect]string{
		sqlfence.PostgreSQL: `text COLLATE "C"`, sqlfence.MySQL: "varbinary(512)", sqlfence.SQLite: "text",
	}[p.Dialect]
	// Twice, since two processes may make it at once; the second finds it.
	create := "CREATE TABLE IF NOT EXISTS " + cells + " (name " + name + " PRIMARY KEY, value varchar(100) NOT NULL, fence bigint NOT NULL DEFAULT 0)"
	if _, err := db.ExecContext(ctx, create); err != nil {
		if _, err := db.ExecContext(ctx, create); err != nil {
			return nil, err
		}
	}
	r := &resource{place: p, db: db, fence: g, cells: cells}
	if p.OwnColumn {
		r.rows, err = g.Table(ctx, db, cells, "name")
	}
	return r, err
}

// resource is a table of a user's, with a row for each name.
type resource struct {
	place
	db    *sql.DB
	fence *sqlfence.Fence
	cells string
	rows  *sqlfence.Table // if the token is in the rows
}

var (
	writers fencetest.Writers[*sqlfence.Writer]
	rows    fencetest.Writers[*sqlfence.Row]
)

func (r *resource) with(ctx context.Context, name string, token uint64) (*sqlfence.Writer, error) {
	return r.fence.With(ctx, r.db, fencing.GrantOf(name, token))
}

func (r *resource) Advance(ctx context.Context, name string, token uint64) (err error) {
	if r.rows != nil {
		_, err = r.row(ctx, name, token)
	} else {
		_, err = r.with(ctx, name, token)
	}
	return err
}

func (r *resource) Write(ctx context.Context, name string, token uint64, value string) error {
	if r.rows != nil {
		row, err := rows.Get(r.cells, name, token, func() (*sqlfence.Row, error) { return r.row(ctx, name, token) })
		if err != nil {
			return err
		}
		return row.Set(ctx, r.db, sqlfence.Columns{"value": value})
	}
	w, err := writers.Get(r.cells, name, token, func() (*sqlfence.Writer, error) { return r.with(ctx, name, token) })
	if err != nil {
		return err
	}
	return w.DoTx(ctx, &sql.TxOptions{Isolation: r.Isolation}, func(tx *sql.Tx) error {
		return r.put(ctx, tx, name, value)
	})
}

// row makes the row first if it is not there, with a token that everybody may follow.
func (r *resource) row(ctx context.Context, name string, token uint64) (*sqlfence.Row, error) {
	lease := fencing.GrantOf(name, token)
	row, err := r.rows.With(ctx, r.db, lease, "fence", r.key(name))
	if !errors.Is(err, sqlfence.ErrNotFound) {
		return row, err
	}
	if err := r.put(ctx, r.db, name, ""); err != nil {
		return nil, err
	}
	return r.rows.With(ctx, r.db, lease, "fence", r.key(name))
}

func (r *resource) Overwrite(ctx context.Context, name, value string) error {
	return r.put(ctx, r.db, name, value)
}

func (r *resource) put(ctx context.Context, db sqlfence.Queryer, name, value string) error {
	query := "INSERT INTO " + r.cells + " (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
	if r.Dialect == sqlfence.MySQL {
		query = "INSERT INTO " + r.cells + " (name, value) VALUES (?, ?) ON DUPLICATE KEY UPDATE value = VALUES(value)"
	}
	_, err := db.ExecContext(ctx, query, r.key(name), value)
	return err
}

func (r *resource) Read(ctx context.Context, name string) (value string, err error) {
	mark := "$1"
	if r.Dialect == sqlfence.MySQL {
		mark = "?"
	}
	// In a transaction for its tries: without a write-ahead log even reading can find the
	// file busy.
	err = r.fence.Transact(ctx, r.db, nil, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, "SELECT value FROM "+r.cells+" WHERE name = "+mark, r.key(name)).Scan(&value)
	})
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return value, err
}

// key is the name as the column has it.
func (r *resource) key(name string) any {
	if r.Dialect == sqlfence.MySQL {
		return []byte(name)
	}
	return name
}

func mustExec(t testing.TB, db *sql.DB, format string, args ...any) {
	t.Helper()
	query := fmt.Sprintf(format, args...)
	if _, err := db.ExecContext(t.Context(), query); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}
