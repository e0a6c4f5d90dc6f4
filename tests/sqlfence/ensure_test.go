//go:build unix

package sqlfence_test

import (
	"database/sql"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/fencing/sqlfence"
)

// A role that may not create finds the table that an administrator has made. The control is a
// missing table.
func TestEnsureTableInPostgreSQLWithoutCreate(t *testing.T) {
	d := postgres(t)
	admin := d.connect(t)
	g := newFence(t, d, admin, sqlfence.Options{})
	role := fresh("humble")
	mustExec(t, admin, "CREATE ROLE %s LOGIN; GRANT pg_read_all_data, pg_write_all_data TO %s", role, role)
	u, err := url.Parse(d.DSN)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(role)
	d.DSN = u.String()
	humble := d.connect(t)
	if err := g.EnsureTable(t.Context(), humble); err != nil {
		t.Error(err)
	}
	with(t, g, humble, "n", 7)
	missing, err := sqlfence.New(d.Dialect, &sqlfence.Options{Table: fresh("missing")})
	if err != nil {
		t.Fatal(err)
	}
	if err := missing.EnsureTable(t.Context(), humble); err == nil {
		t.Error("the role may create: this has tested nothing")
	}
}

// Roles whose search_path leads to different schemas, and each of which may create there, compare
// in one table: the fence of one refuses the stale write of the other. The default path,
// "$user", public, finds the schema with the role's name first.
func TestFenceOfRolesWithDifferentPaths(t *testing.T) {
	d := postgres(t)
	admin := d.connect(t)
	table := fresh("fence")
	as := func(role string) (*sqlfence.Fence, *sql.DB) {
		t.Helper()
		mustExec(t, admin, "CREATE ROLE %s LOGIN; GRANT pg_read_all_data, pg_write_all_data TO %s; CREATE SCHEMA %s AUTHORIZATION %s; GRANT CREATE ON SCHEMA public TO %s", role, role, role, role, role)
		u, err := url.Parse(d.DSN)
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.User(role)
		at := d
		at.DSN = u.String()
		db := at.connect(t)
		g, err := sqlfence.New(d.Dialect, &sqlfence.Options{Table: table})
		if err != nil {
			t.Fatal(err)
		}
		if err := g.EnsureTable(t.Context(), db); err != nil {
			t.Fatal(err)
		}
		return g, db
	}
	one, first := as(fresh("one"))
	other, second := as(fresh("other"))
	stale := with(t, one, first, "n", 7)
	with(t, other, second, "n", 8)
	err := stale.Do(t.Context(), func(*sql.Tx) error { t.Error("the stale function runs"); return nil })
	if !errors.Is(err, fencing.ErrStale) {
		t.Errorf("a stale write: %v", err)
	}
}

// A temporary table of the same name hides none of SQLite's or PostgreSQL's either.
func TestTemporaryTableIsNoFence(t *testing.T) {
	each(t, func(t *testing.T, d database) {
		if d.Dialect == sqlfence.MySQL {
			t.Skip("a temporary table hides the other of its database, also by its full name")
		}
		db := d.connect(t)
		db.SetMaxOpenConns(1) // whose connection has it
		table := fresh("fence")
		mustExec(t, db, "CREATE TEMPORARY TABLE %s (name text PRIMARY KEY, token bigint NOT NULL)", table)
		g, err := sqlfence.New(d.Dialect, &sqlfence.Options{Table: table})
		if err != nil {
			t.Fatal(err)
		}
		if err := g.EnsureTable(t.Context(), db); err != nil {
			t.Fatal(err)
		}
		with(t, g, db, "n", 8)
		if _, err := g.With(t.Context(), d.connect(t), fencing.GrantOf("n", 7)); !errors.Is(err, fencing.ErrStale) {
			t.Errorf("a stale token on another connection: %v", err)
		}
	})
}

// In MariaDB a role without the right is told what an administrator runs; after that it needs no
// other right.
func TestEnsureTableInMariaDBWithoutCreate(t *testing.T) {
	d := mariadb(t)
	admin := d.connect(t)
	user, table := fresh("humble"), fresh("fence")
	g, err := sqlfence.New(d.Dialect, &sqlfence.Options{Table: table})
	if err != nil {
		t.Fatal(err)
	}
	var database string
	if err := admin.QueryRow("SELECT database()").Scan(&database); err != nil {
		t.Fatal(err)
	}
	mustExec(t, admin, "CREATE USER %s", user)
	mustExec(t, admin, "GRANT SELECT ON %s.* TO %s", database, user)
	cfg, err := mysql.ParseDSN(d.DSN)
	if err != nil {
		t.Fatal(err)
	}
	cfg.User, cfg.Passwd = user, ""
	d.DSN = cfg.FormatDSN()
	humble := d.connect(t)
	if err := g.EnsureTable(t.Context(), humble); err == nil || !strings.Contains(err.Error(), "GRANT SELECT, INSERT, UPDATE ON "+table) {
		t.Errorf("without the table: %v", err)
	}
	mustExec(t, admin, "%s", g.Schema())
	mustExec(t, admin, "GRANT SELECT, INSERT, UPDATE ON %s.%s TO %s", database, table, user)
	if err := g.EnsureTable(t.Context(), humble); err != nil {
		t.Error(err)
	}
	with(t, g, humble, "n", 7)
}
