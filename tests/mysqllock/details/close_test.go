package mysqllock_test

import (
	"fmt"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/mysqllock"
)

// A session that ends while its server is read-only cannot be removed there. It gives its
// connection back all the same: the user's pool had one less after each time.
func TestConnectionsAreGivenBackWhereCloseFails(t *testing.T) {
	t.Parallel()
	m := backends.StartMariaDB(t, backends.MariaDBOptions{})
	admin := sqlkit.MariaDBAdmin(t, m)
	testkit.Drawn(t, client(t, sqlkit.MariaDBStore(t, m)), "a") // makes the tables
	sqlkit.Exec(t, admin, "CREATE USER plain@'%' IDENTIFIED BY 'plain'")
	sqlkit.Exec(t, admin, "GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON locks.* TO plain@'%'")
	db := sqlkit.MySQL(t, m.Addr, "plain", "plain", "locks")
	b, err := mysqllock.New(db, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := hasp.New(b, hasp.WithTTL(T))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	for i := range 2 {
		l := testkit.LockDespiteErrors(t, c, fmt.Sprint("read-only-", i)) // its TTL is short, and a renewal may have come too late
		sqlkit.Exec(t, admin, "SET GLOBAL read_only = 1")
		testkit.Lost(t, l, hasp.ReasonExpired, hasp.ReasonSessionGone)
		testkit.Eventually(t, "no connection is used", func() bool { return db.Stats().InUse == 0 })
		sqlkit.Exec(t, admin, "SET GLOBAL read_only = 0")
	}
}
