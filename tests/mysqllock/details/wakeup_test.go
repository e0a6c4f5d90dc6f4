package mysqllock_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// queuer is a session below the core, which asks by itself once in an hour, that is never.
func queuer(t *testing.T, storeURL string) driver.Session {
	t.Helper()
	b := testkit.Open(t, storeURL)
	s, _, err := b.Open(ctx(t), driver.SessionOptions{TTL: time.Hour, Gone: func(string, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.Close(context.Background())
		b.Close()
	})
	return s
}

func enqueue(t *testing.T, s driver.Session, name string, held bool) driver.Ticket {
	t.Helper()
	ticket := s.Ticket(request(name, rand.Text()))
	if v, err := ticket.Enqueue(ctx(t)); err != nil || v.Held != held {
		t.Fatalf("%s: %+v, %v; want held %t", name, v, err, held)
	}
	return ticket
}

// heard waits until the ticket is told that it holds. It does not ask.
func heard(t *testing.T, ticket driver.Ticket) {
	t.Helper()
	short, cancel := context.WithTimeout(ctx(t), slack)
	defer cancel()
	if v, err := ticket.Wait(short); err != nil || !v.Held {
		t.Fatalf("%+v, %v; want it to be told", v, err)
	}
}

// heldAfterRelease stops a waiter between its reading, that it was not granted the lock, and its
// waiting for the wake-up lock: at a gate, which opens when the holder has left, and has released.
// It returns how long the call lasted.
func heldAfterRelease(t *testing.T, m *backends.MariaDB, prefix, slowly string, limit time.Duration) time.Duration {
	t.Helper()
	const passage = "        SET v_got = GET_LOCK("
	broken(t, m, prefix, passage, slowly+passage)
	base := sqlkit.With(sqlkit.MariaDBStore(t, m), "prefix="+prefix)
	holder, waiter := queuer(t, base), queuer(t, base)
	first := enqueue(t, holder, "wakeup", true)
	enqueue(t, waiter, "wakeup", false)
	db := sqlkit.MySQL(t, m.Addr, m.User, m.Password, "locks")
	gate, err := db.Conn(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	defer gate.Close()
	sqlkit.Exec(t, gate, "DO GET_LOCK('t:gate', 0)")
	session := fmt.Sprintf("(SELECT session FROM %sentries WHERE granted IS NULL)", prefix)
	took := make(chan time.Duration, 1)
	go func() {
		var grants int64
		rest := [5]any{new(any), new(any), new(any), new(any), new(any)}
		began := time.Now()
		text := fmt.Sprintf("CALL %slisten_2(%s, 0, -1, 0, %d, 1, NULL, 0)", prefix, session, limit.Microseconds())
		if err := db.QueryRow(text).Scan(&grants, rest[0], rest[1], rest[2], rest[3], rest[4]); err != nil || grants != 1 {
			t.Errorf("%d grants, %v", grants, err)
		}
		took <- time.Since(began)
	}()
	testkit.Eventually(t, "the two calls are at the gate", func() bool {
		return number(t, db, "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock' AND info LIKE '%t:gate%'") == 2
	})
	if err := first.Leave(ctx(t)); err != nil {
		t.Fatal(err)
	}
	sqlkit.Exec(t, gate, "DO RELEASE_LOCK('t:gate')")
	return <-took
}

// L2: no wake-up is lost between the reading and the waiting: the wake-up lock whose number was
// read is free then. The control reads the number when it comes to wait, and so waits for the next
// wake; what heals that, a look a second, is taken out of both.
func TestNoWakeUpIsLost(t *testing.T) {
	t.Parallel()
	m := backends.StartMariaDB(t, backends.MariaDBOptions{})
	sqlkit.MariaDBStore(t, m)
	const long = "        DO GET_LOCK('t:gate', 60);\n        DO RELEASE_LOCK('t:gate');\n        SET v_left = p_limit - v_elapsed;\n"
	if took := heldAfterRelease(t, m, "keeps_", long, 4*slack); took >= 4*slack {
		t.Errorf("the call lasted for %s, to its end", took)
	}
	const limit = 5 * time.Second
	again := long + "        SET v_wakeup = CONCAT('hasp:wakeup:', v_first, ':', (SELECT wakeup FROM loses_sessions WHERE id = v_first));\n"
	if took := heldAfterRelease(t, m, "loses_", again, limit); took < limit {
		t.Errorf("the control was told after %s: this has tested nothing", took)
	}
}

// The connection that has the holder's wake-up locks is killed; then the holder releases. The
// waiter is told, and wakeups are taken anew: the next but one is told as well.
func TestWakeupsAreTakenAnew(t *testing.T) {
	t.Parallel()
	m := backends.StartMariaDB(t, backends.MariaDBOptions{})
	base := sqlkit.MariaDBStore(t, m)
	db := sqlkit.MySQL(t, m.Addr, m.User, m.Password, "locks")
	holder, waiter := queuer(t, base), queuer(t, base)
	session := func() (id string) {
		if err := db.QueryRow("SELECT CONVERT(session USING ascii) FROM hasp_entries WHERE granted IS NOT NULL").Scan(&id); err != nil {
			t.Fatal(err)
		}
		return id
	}
	wakeup := func(id string) (by sql.NullInt64) {
		if err := db.QueryRow(fmt.Sprintf("SELECT IS_USED_LOCK(CONCAT('hasp:wakeup:', id, ':', wakeup)) FROM hasp_sessions WHERE id = '%s'", id)).Scan(&by); err != nil {
			t.Fatal(err)
		}
		return by
	}
	for round := range 3 {
		first := enqueue(t, holder, "anew", true)
		next := enqueue(t, waiter, "anew", false)
		id := session()
		by := wakeup(id)
		if !by.Valid {
			t.Fatalf("round %d: no connection has the wakeup", round)
		}
		if round == 1 {
			sqlkit.Exec(t, db, fmt.Sprint("KILL CONNECTION ", by.Int64))
			testkit.Eventually(t, "the wakeup is free", func() bool { return wakeup(id).Int64 != by.Int64 })
		}
		err := first.Leave(ctx(t))
		if round == 1 { // the connection that leaves is the one that was killed: ask again
			err = first.Leave(ctx(t))
		}
		if err != nil {
			t.Fatal(err)
		}
		heard(t, next)
		if err := next.Leave(ctx(t)); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "the wakeup is taken", func() bool { return wakeup(id).Valid })
	}
}

// While clients wait they read next to nothing: a look a second each, where polling reads hundreds
// of times. A crowd of one name, behind a holder that stays.
func TestWaitingReadsNothing(t *testing.T) {
	t.Parallel()
	m := backends.StartMariaDB(t, backends.MariaDBOptions{})
	base := sqlkit.With(sqlkit.MariaDBStore(t, m), "connections=1")
	enqueue(t, queuer(t, base), "quiet", true)
	const n = 16
	for range n {
		s := queuer(t, base)
		enqueue(t, s, "quiet", false)
	}
	db := sqlkit.MariaDBAdmin(t, m)
	testkit.Eventually(t, "all wait at wakeups", func() bool {
		return number(t, db, "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock'") == n
	})
	began, before := time.Now(), sqlkit.MySQLStatus(t, db, "Com_select")
	time.Sleep(3 * time.Second)
	selects := sqlkit.MySQLStatus(t, db, "Com_select") - before
	// Two to four SELECTs a look, of which there are up to 1.4 a second.
	if most := int64(n * (2 + time.Since(began).Seconds()) * 6); selects > most {
		t.Errorf("%d SELECTs in %s by %d clients that wait, want %d at most", selects, time.Since(began), n, most)
	}
}
