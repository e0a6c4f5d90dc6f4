package mysqllock_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// Of many that enter a queue only one waits at the name's row, where a release would wait behind
// them; and a call that is killed there leaves the others a free gate.
func TestEnterWaitsAtTheGate(t *testing.T) {
	t.Parallel()
	m := backends.StartMariaDB(t, backends.MariaDBOptions{})
	base := sqlkit.With(sqlkit.MariaDBStore(t, m), "prefix=gate_")
	db := sqlkit.MariaDBAdmin(t, m)
	enqueue(t, queuer(t, base), "a", true)
	var sessions []driver.Session
	for range 4 {
		sessions = append(sessions, queuer(t, base)) // which know nothing of the name
	}
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	sqlkit.Exec(t, tx, "SELECT seq FROM locks.gate_names WHERE name = 'a' FOR UPDATE")
	var wg sync.WaitGroup
	failed := make(chan error, len(sessions))
	for i, s := range sessions {
		wg.Go(func() {
			_, err := s.Ticket(request("a", fmt.Sprint("more-", i))).Enqueue(ctx(t))
			failed <- err
		})
	}
	const atGate, atRow = "state = 'User lock' AND info LIKE 'CALL gate_enter%'", "command = 'Query' AND state <> 'User lock' AND info LIKE '%gate_names%' AND info NOT LIKE '%processlist%'"
	waiting := func(where string) int64 {
		return number(t, db, "SELECT COUNT(*) FROM information_schema.processlist WHERE "+where)
	}
	testkit.Eventually(t, "three at the gate and one at the row", func() bool { return waiting(atGate) == 3 && waiting(atRow) == 1 })
	sqlkit.Exec(t, db, fmt.Sprint("KILL QUERY ", number(t, db, "SELECT id FROM information_schema.processlist WHERE "+atRow)))
	if err := <-failed; err == nil {
		t.Error("the killed request was answered")
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	for range len(sessions) - 1 {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	testkit.Eventually(t, "a free gate", func() bool {
		return number(t, db, "SELECT IS_FREE_LOCK(CONCAT('hasp:gate:', SHA1(CONCAT('locks', '.gate_', 'a'))))") == 1
	})
}

// Many waiters find at the same moment that many sessions are dead: one of them removes these, and
// the others do not take from it the locks that it needs.
func TestManyWaitersManyDead(t *testing.T) {
	t.Parallel()
	m := backends.StartMariaDB(t, backends.MariaDBOptions{Config: []string{"innodb_flush_log_at_trx_commit=0"}})
	base := sqlkit.With(sqlkit.MariaDBStore(t, m), "prefix=herd_")
	db := sqlkit.MySQL(t, m.Addr, m.User, m.Password, "locks")
	enqueue(t, queuer(t, base), "a", true)
	const waiters, dead = 40, 200
	for range waiters {
		enqueue(t, queuer(t, base), "a", false)
	}
	for i := range dead {
		sqlkit.Exec(t, db, fmt.Sprintf("INSERT INTO herd_sessions (id, expires) VALUES ('s%d', UTC_TIMESTAMP(6) + INTERVAL 1 DAY)", i))
		sqlkit.Exec(t, db, fmt.Sprintf("CALL herd_enter_2(0, 'b', 'id-%[1]d', 's%[1]d', %[2]d, %[2]d, 0, '', '')", i, driver.Whole))
	}
	questions := func() int64 {
		return number(t, db, "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'QUESTIONS'")
	}
	began, before, looks := time.Now(), questions(), int64(0)
	sqlkit.Exec(t, db, "UPDATE herd_sessions SET expires = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND WHERE id LIKE 's%' AND LENGTH(id) < 5")
	testkit.Eventually(t, "the removal of the dead", func() bool {
		looks++
		return number(t, db, "SELECT COUNT(*) FROM herd_sessions") == waiters+1
	})
	spent, took := questions()-before-looks, time.Since(began)
	t.Logf("%d statements in %s for %d dead sessions", spent, took.Round(time.Millisecond), dead)
	// Four for each: what it has, its departure, that nothing is left, its end. The waiters look
	// now and then. Where a batch takes more than a second its claim is old, and one more client
	// each second removes the same sixteen.
	if most := 4*dead + 20*waiters + (4*16+3*waiters)*int64(took/time.Second); spent > most {
		t.Errorf("%d statements in %s for %d dead sessions beside %d waiters, want %d at most", spent, took, dead, waiters, most)
	}
}

// Another client is just about to claim the dead, for as long as it takes: a try asks again in
// pauses, and not as fast as it can.
func TestTryBesideClaim(t *testing.T) {
	t.Parallel()
	m := backends.SharedMariaDB(t)
	count, base := counted(t, m)
	base = sqlkit.With(base, "prefix=claim_")
	enqueue(t, queuer(t, base), "a", true)
	other := queuer(t, base)
	db := sqlkit.MySQL(t, m.Addr, m.User, m.Password, "locks")
	gate, err := db.Conn(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	defer gate.Close()
	sqlkit.Exec(t, gate, "DO GET_LOCK(CONCAT('hasp:claim:', SHA1(CONCAT(DATABASE(), '.claim_'))), 0)")
	sqlkit.Exec(t, db, "UPDATE claim_sessions SET expires = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND WHERE id = (SELECT h_session FROM claim_names WHERE name = 'a')")
	r := request("a", "try")
	r.NoWait = true
	began := time.Now()
	if v, err := other.Ticket(r).Enqueue(ctx(t)); err != nil || v.Held {
		t.Errorf("%+v, %v; want that the lock is taken", v, err)
	}
	most := int(time.Since(began)/(20*time.Millisecond)) + 1
	count.mu.Lock()
	defer count.mu.Unlock()
	if n := count.texts["CALL claim_claim_2"]; n == 0 || n > most {
		t.Errorf("claimed %d times: %v", n, count.texts)
	}
}
