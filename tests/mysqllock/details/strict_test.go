package mysqllock_test

import (
	"regexp"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/mysqllock"
)

// A cluster that allows neither GET_LOCK nor RELEASE_LOCK (Percona XtraDB Cluster, by default): a
// free name is locked by the first request, and who has died keeps no client out. SIGNAL takes
// their place, since MariaDB's DO passes no error on as MySQL's does.
func TestGatesNotAllowed(t *testing.T) {
	t.Parallel()
	m := backends.SharedMariaDB(t)
	base := sqlkit.With(sqlkit.MariaDBStore(t, m), "prefix=strict_")
	db := sqlkit.MySQL(t, m.Addr, m.User, m.Password, "locks")
	b, err := mysqllock.New(db, &mysqllock.Options{Prefix: "strict_"})
	if err != nil {
		t.Fatal(err)
	}
	gates := regexp.MustCompile(`SET v_got = GET_LOCK\(v_gate, \d\);|DO RELEASE_LOCK\(v_gate\);`)
	text := b.(driver.Migrator).Schema()
	if n := len(gates.FindAllString(text, -1)); n != 7 {
		t.Fatalf("the schema uses its gates %d times", n)
	}
	shell(t, m, gates.ReplaceAllString(text, "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1105;"))

	try := func(s driver.Session, name string) {
		t.Helper()
		r := testkit.Request(name)
		r.NoWait, r.Owner = true, "{}"
		if v, err := s.Ticket(r).Enqueue(ctx(t)); err != nil || !v.Held {
			t.Errorf("a try of %s: %+v, %v", name, v, err)
		}
	}
	first, second := queuer(t, base), queuer(t, base)
	if err := enqueue(t, first, "free", true).Leave(ctx(t)); err != nil {
		t.Fatal(err)
	}
	try(second, "free") // which knows nothing of it, and finds its row
	enqueue(t, first, "dead", true)
	sqlkit.Exec(t, db, "UPDATE strict_sessions SET expires = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND WHERE id = (SELECT h_session FROM strict_names WHERE name = 'dead')")
	try(second, "dead")
}
