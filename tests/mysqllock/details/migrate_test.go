package mysqllock_test

import (
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// The tables are dropped under a client whose locks are bound to connections: the next lock makes
// them anew.
func TestTableDroppedBound(t *testing.T) {
	t.Parallel()
	m := backends.SharedMariaDB(t)
	db := sqlkit.MySQL(t, m.Addr, m.User, m.Password, "locks")
	const prefix = "again_"
	c := client(t, sqlkit.With(sqlkit.MariaDBStore(t, m), "strategy=getlock", "prefix="+prefix), hasp.WithTTL(lasting))
	last := testkit.Drawn(t, c, "a")
	for _, table := range []string{"schema", "store", "entries", "sessions", "names", "bound", "evictions"} {
		sqlkit.Exec(t, db, "DROP TABLE "+prefix+table)
	}
	if next := testkit.Drawn(t, c, "a"); next <= last {
		t.Errorf("token %d after %d", next, last)
	}
}
