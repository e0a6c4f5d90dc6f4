package mysqllock_test

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// prefixed is the store of a prefix at the shared server, and a pool beside it.
func prefixed(t *testing.T, prefix string, params ...string) (storeURL string, db *sql.DB) {
	t.Helper()
	m := backends.SharedMariaDB(t)
	storeURL = sqlkit.With(sqlkit.MariaDBStore(t, m), append(params, "prefix="+prefix)...)
	return storeURL, sqlkit.MySQL(t, m.Addr, m.User, m.Password, "locks")
}

// callSweep is a sweep of names that were idle for an hour.
const callSweep = "CALL %ssweep_2(3600000000)"

// sweep has a sweep due, and makes it.
func sweep(t *testing.T, db *sql.DB, prefix string) {
	t.Helper()
	sqlkit.Exec(t, db, "UPDATE "+prefix+"store SET swept = '1970-01-01'")
	sqlkit.Exec(t, db, fmt.Sprintf(callSweep, prefix))
}

// Names that were idle for long are forgotten, and their next token is greater than
// their last all the same. Names in use stay, however old their last token is.
func TestForgottenNames(t *testing.T) {
	t.Parallel()
	storeURL, db := prefixed(t, "forget_", "retention=1h")
	c := client(t, storeURL)
	last := testkit.Drawn(t, c, "unused")
	held := testkit.Lock(t, c, "held")
	testkit.Drawn(t, c, "young")
	sqlkit.Exec(t, db, "UPDATE forget_names SET seq = seq - 7200000000 WHERE name <> 'young'")
	sweep(t, db, "forget_")
	// A renewal may have found that a sweep was due, and be at it.
	testkit.Until(t, "the sweep", func() error {
		left, used := number(t, db, "SELECT COUNT(*) FROM forget_names"), number(t, db, "SELECT COUNT(*) FROM forget_names WHERE name IN ('held', 'young')")
		if left != 2 || used != 2 {
			return fmt.Errorf("%d names are left, %d of them in use or young; want these two", left, used)
		}
		return nil
	})
	if next := testkit.Drawn(t, c, "unused"); next <= last {
		t.Errorf("token %d after %d", next, last)
	}
	testkit.Release(t, held)
}

// What getlock keeps of a name is forgotten as well, its token grows over that, and a
// lock that is held for longer than names are remembered keeps its row, by which others see
// who holds it.
func TestForgottenTokens(t *testing.T) {
	t.Parallel()
	for i, strategy := range []string{"getlock", "getlock&names=plain"} {
		t.Run(strategy, func(t *testing.T) {
			prefix := fmt.Sprintf("tokens%d_", i)
			storeURL, db := prefixed(t, prefix, "retention=1h", "strategy="+strategy)
			b := testkit.Open(t, storeURL)
			t.Cleanup(func() { b.Close() })
			s := testkit.Session(t, b, time.Hour, nil)
			listed := func(name string) (driver.Entry, error) {
				list, err := b.List(ctx(t), name, 0)
				if err != nil || len(list) != 1 || list[0].Owner != "{}" {
					return driver.Entry{}, fmt.Errorf("%s: %+v, %v", name, list, err)
				}
				return list[0], nil
			}
			lock := func(name string) (driver.Ticket, uint64) {
				k := s.Ticket(request(name, name+"-id"))
				v, err := k.Enqueue(ctx(t))
				if err != nil || !v.Held {
					t.Fatalf("%s: %+v, %v", name, v, err)
				}
				testkit.Until(t, "the record of "+name, func() error { _, err := listed(name); return err })
				return k, v.Token
			}
			free := func(k driver.Ticket) {
				if err := k.Leave(ctx(t)); err != nil {
					t.Fatal(err)
				}
			}
			k, last := lock("unused")
			free(k)
			held, _ := lock("held")
			defer free(held)
			if k, _ = lock("young"); true {
				free(k)
			}
			sqlkit.Exec(t, db, "UPDATE "+prefix+"bound SET seq = seq - 7200000000 WHERE name <> 'young'")
			sweep(t, db, prefix)
			tokens, old := number(t, db, "SELECT COUNT(*) FROM "+prefix+"bound"), number(t, db, "SELECT COUNT(*) FROM "+prefix+"bound WHERE name = 'unused'")
			if tokens != 2 || old != 0 {
				t.Errorf("%d tokens are left, %d of the name that is unused; want those of the two others", tokens, old)
			}
			if e, err := listed("held"); err != nil || e.Seq == 0 {
				t.Errorf("a lock that is held for long: %+v, %v", e, err)
			}
			k, next := lock("unused")
			if free(k); next <= last {
				t.Errorf("token %d after %d", next, last)
			}
		})
	}
}

// Many clients sweep no more often than one: once in a minute, by the database's own count.
func TestSweepOnceAMinute(t *testing.T) {
	t.Parallel()
	storeURL, db := prefixed(t, "once_")
	var sessions []driver.Session
	for range 5 {
		sessions = append(sessions, queuer(t, storeURL))
	}
	exec := func(text string) {
		t.Helper()
		sqlkit.Exec(t, db, strings.ReplaceAll(text, "{p}", "once_"))
	}
	left := func() int64 { return number(t, db, "SELECT COUNT(*) FROM once_names") }
	renew := func() {
		t.Helper()
		for _, s := range sessions {
			if _, err := s.KeepAlive(ctx(t)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 3 {
		exec("INSERT INTO {p}names (name, seq) VALUES ('old', 1)")
		exec("UPDATE {p}store SET swept = UTC_TIMESTAMP(6) - INTERVAL 61 SECOND")
		renew()
		if left() != 0 {
			t.Error("a sweep was due, and no client made it")
		}
		exec("INSERT INTO {p}names (name, seq) VALUES ('old', 1)")
		exec("UPDATE {p}store SET swept = UTC_TIMESTAMP(6) - INTERVAL 20 SECOND")
		renew()
		if left() != 1 {
			t.Error("swept twice in a minute")
		}
		exec("DELETE FROM {p}names")
	}
	// A clock that was set back does not end it.
	exec("INSERT INTO {p}names (name, seq) VALUES ('old', 1)")
	exec("UPDATE {p}store SET swept = UTC_TIMESTAMP(6) + INTERVAL 1 HOUR")
	renew()
	if left() != 0 {
		t.Error("no client sweeps until the clock is where it was")
	}
}

// A sweep reads what it forgets, and not all names that there are.
func TestSweepReadsLittle(t *testing.T) {
	t.Parallel()
	storeURL, db := prefixed(t, "little_")
	queuer(t, storeURL) // makes the tables
	for _, text := range []string{
		"INSERT INTO {p}names (name, seq) SELECT CONCAT('young', seq), 1000000 * UNIX_TIMESTAMP() FROM seq_1_to_3000",
		"INSERT INTO {p}names (name, seq) SELECT CONCAT('old', seq), 1 FROM seq_1_to_10",
		"INSERT INTO {p}bound (name, seq, id, connection, since, owner, lock_name) SELECT CONCAT('young', seq), 1000000 * UNIX_TIMESTAMP(), '', 0, 0, '', '' FROM seq_1_to_3000",
		"UPDATE {p}store SET swept = '1970-01-01'",
	} {
		sqlkit.Exec(t, db, strings.ReplaceAll(text, "{p}", "little_"))
	}
	c := testkit.Must[*sql.Conn](t)(db.Conn(ctx(t)))
	defer c.Close()
	reads := func() (n int64) {
		rows := testkit.Must[*sql.Rows](t)(c.QueryContext(ctx(t), "SHOW SESSION STATUS LIKE 'Handler_read%'"))
		defer rows.Close()
		for rows.Next() {
			var value int64
			if err := rows.Scan(new(string), &value); err != nil {
				t.Fatal(err)
			}
			n += value
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := reads()
	sqlkit.Exec(t, c, fmt.Sprintf(callSweep, "little_"))
	if n := reads() - before; n > 300 {
		t.Errorf("%d rows were read to forget 10 of 3010", n)
	}
	if left := number(t, db, "SELECT COUNT(*) FROM little_names"); left != 3000 {
		t.Errorf("%d names are left, want 3000", left)
	}
}

// A client watches an idle name: that it is forgotten is no change of it.
func TestWatchOfForgottenName(t *testing.T) {
	t.Parallel()
	storeURL, db := prefixed(t, "watchold_", "retention=1h")
	b := testkit.Open(t, storeURL)
	t.Cleanup(func() { b.Close() })
	s := testkit.Session(t, b, time.Hour, nil)
	use := func() {
		t.Helper()
		if err := enqueue(t, s, "idle", true).Leave(ctx(t)); err != nil {
			t.Fatal(err)
		}
	}
	use()
	sqlkit.Exec(t, db, "UPDATE watchold_names SET seq = seq - 7200000000")
	changes := make(chan struct{}, 100)
	go func() { _ = b.(driver.Watcher).Watch(t.Context(), "idle", func() { changes <- struct{}{} }) }()
	testkit.Await(t, "the watch stands", changes)
	sweep(t, db, "watchold_")
	select {
	case <-changes:
		t.Error("told of a change when the name was forgotten")
	case <-time.After(time.Second): // a watch looks each half second at least
	}
	use()
	testkit.Await(t, "a change afterwards", changes)
}
