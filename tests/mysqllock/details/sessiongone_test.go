package mysqllock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// A session that is gone gets no lock any more, on any way to one: its row was deleted by hand, or
// it has expired by a clock that was stepped for a moment, with its row still there or claimed by
// who removes the dead. An entry without a session is none to the others: two would hold (S1).
func TestGoneSessionGetsNothing(t *testing.T) {
	t.Parallel()
	m := backends.SharedMariaDB(t)
	db := sqlkit.MySQL(t, m.Addr, m.User, m.Password, "locks")
	for what, end := range map[string]string{
		"deleted": "DELETE FROM gone_sessions WHERE id = '%s'",
		"expired": "UPDATE gone_sessions SET expires = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND WHERE id = '%s'",
		"claimed": "UPDATE gone_sessions SET expires = '1970-01-01', claimed = UTC_TIMESTAMP(6) WHERE id = '%s'",
	} {
		t.Run(what, func(t *testing.T) {
			base := sqlkit.With(sqlkit.MariaDBStore(t, m), "prefix=gone_")
			b, other := testkit.Open(t, base), queuer(t, base)
			told := make(chan string, 16)
			s, _, err := b.Open(ctx(t), driver.SessionOptions{TTL: time.Hour, Gone: func(id string, _ error) { told <- id }})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close(ctx(t)) })
			enqueue(t, s, what+"-which", true)
			list, err := b.List(ctx(t), what+"-which", 1)
			if err != nil || len(list) != 1 {
				t.Fatalf("%+v, %v", list, err)
			}
			id := list[0].Session

			// Names that it had alone (one UPDATE), that it does not know (the procedure's UPDATE),
			// and that others want.
			if err := enqueue(t, s, what+"-alone", true).Leave(ctx(t)); err != nil {
				t.Fatal(err)
			}
			if err := enqueue(t, other, what+"-known", true).Leave(ctx(t)); err != nil {
				t.Fatal(err)
			}
			shared := testkit.Request(what + "-shared")
			shared.Units = 1
			if v, err := other.Ticket(shared).Enqueue(ctx(t)); err != nil || !v.Held {
				t.Fatalf("%+v, %v", v, err)
			}
			enqueue(t, other, what+"-taken", true)
			sqlkit.Exec(t, db, fmt.Sprintf(end, id))
			for _, name := range []string{"-alone", "-known", "-new", "-shared", "-taken"} {
				for _, noWait := range []bool{true, false} {
					r := testkit.Request(what + name)
					r.NoWait = noWait
					if name == "-shared" {
						r.Units = 1
					}
					v, err := s.Ticket(r).Enqueue(ctx(t))
					if busy := noWait && name == "-taken" && err == nil && !v.Held; !busy && err == nil {
						t.Errorf("%s, at once %t: %+v", r.Name, noWait, v)
					}
				}
			}
			select {
			case id := <-told:
				if id != "" {
					t.Errorf("told that the entry %q is gone, and not the session", id)
				}
			default:
				t.Error("it was not told that its session is gone")
			}
			enqueue(t, other, what+"-new", true)
			enqueue(t, other, what+"-alone", true)
		})
	}
}

// The server's defaults for transactions may be others: then each COMMIT begins another
// transaction, which holds rows, or ends the connection; and without autocommit nothing is
// committed. On connections of our own hasp says what it needs.
func TestTransactionDefaults(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{"completion_type=CHAIN", "completion_type=RELEASE", "autocommit=0"} {
		for _, strategy := range []string{"table", "getlock"} {
			t.Run(setting+"/"+strategy, func(t *testing.T) {
				t.Parallel()
				m := backends.StartMariaDB(t, backends.MariaDBOptions{Config: []string{setting}})
				base := sqlkit.With(sqlkit.MariaDBStore(t, m), "strategy="+strategy)
				c, other := client(t, base), client(t, base)
				for i := range 12 { // more than the pool has connections
					first := testkit.Lock(t, c, fmt.Sprint("name-", i%3))
					next := testkit.Locking(t, other, first.Name())
					if strategy == "table" {
						testkit.Eventually(t, "the waiter", func() bool { return len(testkit.Entries(t, c, first.Name())) == 2 })
					}
					testkit.Release(t, first)
					second := testkit.Granted(t, next)
					if second.Token() <= first.Token() {
						t.Errorf("token %d after %d", second.Token(), first.Token())
					}
					testkit.Release(t, second)
				}
				db := sqlkit.MariaDBAdmin(t, m)
				testkit.Eventually(t, "no transaction left open", func() bool {
					return number(t, db, "SELECT COUNT(*) FROM information_schema.innodb_trx") == 0
				})
			})
		}
	}
}
