//go:build unix

package sqlfence_test

import (
	"net/url"
	"testing"

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
