package mysqllock_test

import (
	"strings"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// What a role can do that owns another database on the server, and nothing of ours: it has
// tables, procedures and functions there with the names of ours and of the server's own
// functions, each of which would note that it was called. A name without a database means, in a
// procedure, the procedure's own database, and there is no path that is searched: nothing of
// that role's runs. It can neither replace our procedures nor call them; and a role that was given
// EXECUTE alone gets no further, since they run with the rights of their caller.
func TestHostileRole(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	m := backends.StartMariaDB(t, backends.MariaDBOptions{})
	base, db := sqlkit.MariaDBStore(t, m), sqlkit.MariaDBAdmin(t, m)
	sqlkit.Exec(t, db, "CREATE DATABASE stranger")
	sqlkit.Exec(t, db, "CREATE USER stranger@'%' IDENTIFIED BY 's'")
	sqlkit.Exec(t, db, "GRANT ALL ON stranger.* TO stranger@'%'")
	testkit.Release(t, testkit.Lock(t, client(t, base), "warm-up"))

	own := sqlkit.MySQL(t, m.Addr, "stranger", "s", "stranger")
	sqlkit.Exec(t, own, "CREATE TABLE called (who VARCHAR(64))")
	for _, table := range []string{"names", "sessions", "entries", "bound", "evictions", "store", "schema"} {
		sqlkit.Exec(t, own, "CREATE TABLE hasp_"+table+" (name VARBINARY(512), id VARBINARY(40))")
	}
	for _, name := range []string{"hasp_grant_2", "hasp_enter_2", "hasp_leave_2", "hasp_raise_2", "hasp_acquire_2", "hasp_sweep_2"} {
		sqlkit.Exec(t, own, "CREATE PROCEDURE "+name+"(a VARBINARY(512)) INSERT INTO stranger.called VALUES ('"+name+"')")
	}
	for _, name := range []string{"greatest", "coalesce", "utc_timestamp", "last_insert_id", "timestampdiff", "uuid_short", "bit_xor"} {
		if _, err := own.Exec("CREATE FUNCTION stranger.`" + name + "`(a BIGINT, b BIGINT) RETURNS BIGINT BEGIN INSERT INTO stranger.called VALUES ('" + name + "'); RETURN 0; END"); err != nil {
			t.Logf("not even in its own database: %v", err)
		}
	}
	c := client(t, base, hasp.WithTTL(calm))
	l, err := c.RWMutex("a").Lock(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	next := testkit.Locking(t, c, "b")
	testkit.Release(t, <-next)
	if err := l.Downgrade(ctx(t)); err != nil {
		t.Error(err)
	}
	testkit.Release(t, l)
	b := testkit.Open(t, base)
	defer b.Close()
	s, _, err := b.Open(ctx(t), driver.SessionOptions{TTL: calm, Gone: func(string, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.KeepAlive(ctx(t)); err != nil {
		t.Error(err)
	}
	if err := s.Close(ctx(t)); err != nil {
		t.Error(err)
	}
	testkit.Release(t, testkit.Lock(t, client(t, sqlkit.With(base, "strategy=getlock")), "a"))
	if n := number(t, db, "SELECT COUNT(*) FROM stranger.called"); n != 0 {
		t.Errorf("the other role's code ran %d times", n)
	}

	refused := func(text string) {
		t.Helper()
		if _, err := own.Exec(text); err == nil || !strings.Contains(err.Error(), "denied") {
			t.Errorf("%s: %v", text, err)
		}
	}
	refused("DROP PROCEDURE locks.hasp_grant_2")
	refused("CREATE PROCEDURE locks.more() SELECT 1")
	refused("CREATE TRIGGER locks.t BEFORE INSERT ON locks.hasp_entries FOR EACH ROW SET NEW.units = 0")
	refused("CALL locks.hasp_leave_2('a', 'x', NULL, NULL, NULL)")
	sqlkit.Exec(t, db, "GRANT EXECUTE ON locks.* TO stranger@'%'")
	refused("CALL locks.hasp_leave_2('a', 'x', NULL, NULL, NULL)")
	refused("CALL locks.hasp_sweep_2(1)")
}
