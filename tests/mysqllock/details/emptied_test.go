package mysqllock_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// Somebody empties our tables under clients that go on: a program's tests clean up so. They lock as
// before, and who waits is granted; no token of before comes back.
func TestEmptiedTables(t *testing.T) {
	t.Parallel()
	m := backends.SharedMariaDB(t)
	db := sqlkit.MySQL(t, m.Addr, m.User, m.Password, "locks")
	for _, strategy := range []string{"getlock", "table"} {
		t.Run(strategy, func(t *testing.T) {
			prefix := "emptied_" + strategy + "_"
			base := sqlkit.With(sqlkit.MariaDBStore(t, m), "prefix="+prefix, "strategy="+strategy)
			c, other := client(t, base), client(t, base)
			testkit.Release(t, testkit.Lock(t, other, "b"))
			last := uint64(0)
			grows := func(token uint64) {
				t.Helper()
				if token <= last {
					t.Errorf("token %d after %d", token, last)
				}
				last = token
			}
			for i := range 4 {
				l := testkit.Lock(t, c, "a")
				grows(l.Token())
				var next <-chan *hasp.Lease
				if strategy == "getlock" { // a lock of the table goes with its row, and its holder is told
					next = testkit.Locking(t, other, "a")
				}
				for _, table := range strings.Fields("entries sessions names evictions bound store") {
					sqlkit.Exec(t, db, fmt.Sprintf("DELETE FROM %s%s", prefix, table))
				}
				if strategy == "getlock" {
					if !l.Held() {
						t.Fatalf("lost: %v", l.Err())
					}
					testkit.Release(t, l)
					l = testkit.Granted(t, next)
					grows(l.Token())
					testkit.Release(t, l)
					continue
				}
				l = testkit.LockDespiteErrors(t, other, fmt.Sprint("new-", i))
				grows(l.Token())
				testkit.Release(t, l)
				testkit.LockDespiteErrors(t, c, fmt.Sprint("other-", i))
			}
			fresh := client(t, base)
			l := testkit.Lock(t, fresh, "a")
			grows(l.Token())
			testkit.Release(t, l)
		})
	}
}
