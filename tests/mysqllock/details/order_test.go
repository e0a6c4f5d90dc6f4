package mysqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	osexec "os/exec"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/mysqllock"
)

// broken makes the tables and procedures of a prefix with one passage of a procedure
// replaced: a driver that is wrong in one way.
func broken(t *testing.T, m *backends.MariaDB, prefix, passage, instead string) {
	t.Helper()
	b, err := mysqllock.New(sqlkit.MySQL(t, m.Addr, m.User, m.Password, "locks"), &mysqllock.Options{Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	text := b.(driver.Migrator).Schema()
	if strings.Count(text, passage) != 1 {
		t.Fatalf("%q is in the procedures %d times", passage, strings.Count(text, passage))
	}
	shell(t, m, strings.Replace(text, passage, instead, 1))
}

// shell feeds a text to the database's own shell.
func shell(t *testing.T, m *backends.MariaDB, text string) {
	t.Helper()
	host, port, _ := strings.Cut(m.Addr, ":")
	cmd := osexec.Command("mariadb", "--no-defaults", "--skip-ssl", "-h"+host, "-P"+port, "-u"+m.User, "-p"+m.Password, "locks")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("mariadb: %v\n%s", err, out)
	}
}

// drawnUnderLock reports whether Seq is drawn with the name's row locked: another transaction holds
// the lock of the row, the request comes to wait for it, the stored Seq is moved far ahead, and
// then the request must draw one that is greater.
//
// slow has the request made by the procedure, as where there is a queue.
func drawnUnderLock(t *testing.T, m *backends.MariaDB, prefix string, slow bool) bool {
	t.Helper()
	b := testkit.Open(t, sqlkit.With(sqlkit.MariaDBStore(t, m), "prefix="+prefix))
	defer b.Close()
	s, _, err := b.Open(ctx(t), driver.SessionOptions{TTL: calm, Gone: func(string, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	first := s.Ticket(request("order", prefix+"1"))
	if _, err := first.Enqueue(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if err := first.Leave(ctx(t)); err != nil {
		t.Fatal(err)
	}
	db := sqlkit.MySQL(t, m.Addr, m.User, m.Password, "locks")
	if slow {
		sqlkit.Exec(t, db, "UPDATE "+prefix+"names SET state = 2 WHERE name = 'order'")
	}
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	sqlkit.Exec(t, tx, "SELECT seq FROM "+prefix+"names WHERE name = 'order' FOR UPDATE")
	answer := make(chan driver.Verdict, 1)
	go func() {
		v, err := s.Ticket(request("order", prefix+"2")).Enqueue(ctx(t))
		if err != nil {
			t.Error(err)
		}
		answer <- v
	}()
	testkit.Eventually(t, "the request waits for the row", func() bool { return waitsForLock(t, db, prefix) })
	sqlkit.Exec(t, tx, "UPDATE "+prefix+"names SET seq = seq + 1000000000000 WHERE name = 'order'")
	moved := number(t, db, "SELECT seq FROM "+prefix+"names WHERE name = 'order'") + 1000000000000
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	v := <-answer
	return v.Held && v.Token > uint64(moved)
}

// Seq is drawn under the lock of the name's row. The control draws it before.
func TestSeqIsDrawnUnderLock(t *testing.T) {
	t.Parallel()
	m := backends.SharedMariaDB(t)
	sqlkit.MariaDBStore(t, m)
	for prefix, slow := range map[string]bool{"order_": false, "slow_": true} {
		if !drawnUnderLock(t, m, prefix, slow) {
			t.Errorf("Seq was drawn before the row was locked, by the procedure: %t", slow)
		}
	}
	broken(t, m, "early_", "LAST_INSERT_ID(GREATEST(seq + 1, v_now)) WHERE name = p_name AND", "LAST_INSERT_ID(v_now) WHERE name = p_name AND")
	if drawnUnderLock(t, m, "early_", true) {
		t.Error("the control draws Seq early, and was not caught")
	}
}

// renewedApart reports whether a session is renewed within a limit although another transaction has
// locked every name's row, and without counting a grant, which has waiters look.
func renewedApart(t *testing.T, m *backends.MariaDB, prefix string, limit time.Duration) bool {
	t.Helper()
	b := testkit.Open(t, sqlkit.With(sqlkit.MariaDBStore(t, m), "prefix="+prefix))
	defer b.Close()
	s, _, err := b.Open(ctx(t), driver.SessionOptions{TTL: calm, Gone: func(string, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	for _, id := range []string{"holds", "waits"} {
		if _, err := s.Ticket(request("renewed", prefix+id)).Enqueue(ctx(t)); err != nil {
			t.Fatal(err)
		}
	}
	db := sqlkit.MySQL(t, m.Addr, m.User, m.Password, "locks")
	grants := func() int64 { return number(t, db, "SELECT SUM(grants) FROM "+prefix+"sessions") }
	before := grants()
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	sqlkit.Exec(t, tx, "SELECT COUNT(*) FROM (SELECT seq FROM "+prefix+"names FOR UPDATE) n")
	short, cancel := context.WithTimeout(ctx(t), limit)
	defer cancel()
	_, err = s.KeepAlive(short)
	return err == nil && grants() == before
}

// A renewal locks no name and wakes no waiter. One control locks the names, another counts a grant.
func TestRenewalStandsApart(t *testing.T) {
	t.Parallel()
	m := backends.SharedMariaDB(t)
	sqlkit.MariaDBStore(t, m)
	if !renewedApart(t, m, "apart_", slack) {
		t.Error("a renewal waited for a name, or woke a waiter")
	}
	const passage = "      WHERE id = p_session;\n  END IF;\n"
	broken(t, m, "locksnames_", passage, passage+"  SELECT COUNT(*) INTO v_there FROM (SELECT seq FROM locksnames_names FOR UPDATE) n;\n")
	if renewedApart(t, m, "locksnames_", time.Second) {
		t.Error("the control locks names, and was not caught")
	}
	broken(t, m, "counts_", passage, passage+"  UPDATE counts_sessions SET grants = grants + 1;\n")
	if renewedApart(t, m, "counts_", slack) {
		t.Error("the control counts a grant at each renewal, and was not caught")
	}
}

// Another program's transaction on our tables makes a deadlock with a release, and the server
// has the release undone: it is repeated, and the waiter is granted the lock.
func TestDeadlock(t *testing.T) {
	t.Parallel()
	m := backends.StartMariaDB(t, backends.MariaDBOptions{})
	base := sqlkit.MariaDBStore(t, m)
	a, b := client(t, base), client(t, base)
	held := testkit.Lock(t, a, "dead")
	next := testkit.Locking(t, b, "dead")
	db := sqlkit.MySQL(t, m.Addr, m.User, m.Password, "locks")
	testkit.Eventually(t, "a waiter", func() bool { return number(t, db, "SELECT COUNT(*) FROM hasp_entries") == 2 })
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	// InnoDB undoes the transaction that has changed less.
	sqlkit.Exec(t, db, "CREATE TABLE ballast (n INT)")
	sqlkit.Exec(t, tx, "INSERT INTO ballast SELECT seq FROM seq_1_to_1000")
	sqlkit.Exec(t, tx, "SELECT grants FROM hasp_sessions WHERE id = (SELECT session FROM hasp_entries WHERE granted IS NULL) FOR UPDATE")
	before := sqlkit.MySQLStatus(t, db, "Innodb_deadlocks")
	done := make(chan error, 1)
	go func() { done <- held.Release(ctx(t)) }()
	testkit.Eventually(t, "the release waits for the waiter's session", func() bool { return waitsForLock(t, db, "hasp_") })
	sqlkit.Exec(t, tx, "SELECT seq FROM hasp_names WHERE name = 'dead' FOR UPDATE")
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("release: %v", err)
	}
	if sqlkit.MySQLStatus(t, db, "Innodb_deadlocks") == before {
		t.Error("there was no deadlock: this has tested nothing")
	}
	if l := <-next; l == nil || !l.Held() {
		t.Error("the waiter was not granted the lock")
	}
}

// A role that may not create tables is told whom to ask, and can work once they are there.
// The controls: a role that may is told nothing, and where a procedure was left out it cannot
// work.
func TestRoleWithoutCreate(t *testing.T) {
	testtier.Long(t)
	m := backends.SharedMariaDB(t)
	base := sqlkit.With(sqlkit.MariaDBStore(t, m), "prefix=role_")
	db := sqlkit.MariaDBAdmin(t, m)
	sqlkit.Exec(t, db, "CREATE USER worker@'%' IDENTIFIED BY 'secret-of-the-worker'")
	sqlkit.Exec(t, db, "GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON locks.* TO worker@'%'")
	t.Setenv("MYSQL_PWD", "secret-of-the-worker")
	u := strings.Replace(base, m.User+":"+m.Password+"@", "worker@", 1)
	for _, strategy := range []string{"table", "getlock"} {
		u := sqlkit.With(u, "strategy="+strategy)
		c := client(t, u)
		_, err := c.Mutex("a").Lock(ctx(t))
		if !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), "hasp migrate --print") {
			t.Errorf("without tables: %v", err)
		}
		if strings.Contains(fmt.Sprintf("%+v", err), "secret-of-the-worker") {
			t.Error("the password is in the message")
		}
	}
	b := testkit.Open(t, u)
	defer b.Close()
	shell(t, m, b.(driver.Migrator).Schema())
	shell(t, m, b.(driver.Migrator).Schema()) // twice does no harm
	works := func(strategy string) error {
		return client(t, sqlkit.With(u, "strategy="+strategy+"&migrate=false")).Do(ctx(t), "a", func(context.Context) error { return nil })
	}
	for _, strategy := range []string{"table", "getlock"} {
		if err := works(strategy); err != nil {
			t.Errorf("%s: %v", strategy, err)
		}
	}
	testkit.Release(t, testkit.Lock(t, client(t, strings.Replace(base, "role_", "allowed_", 1)), "a"))
	mayNotMake := client(t, sqlkit.With(u, "strategy=getlock"))
	sqlkit.Exec(t, db, "DROP PROCEDURE locks.role_raise_2")
	if err := works("getlock"); err == nil {
		t.Error("worked without the procedure that draws a block of tokens: this has tested nothing")
	}
	// The script may be applied while clients are at work. One that has met the gap goes on when
	// all is there.
	if _, err := mayNotMake.Mutex("b").TryLock(ctx(t)); err == nil {
		t.Error("locked without the procedure that draws a block of tokens")
	}
	shell(t, m, b.(driver.Migrator).Schema())
	l, err := mayNotMake.Mutex("b").Lock(ctx(t))
	if err != nil {
		t.Fatalf("when the procedure is there again: %v", err)
	}
	testkit.Release(t, l)
}

// Several processes migrate at once: one does it, and all find it done.
func TestMigrateAtOnce(t *testing.T) {
	t.Parallel()
	base := sqlkit.With(serverURL(t), "prefix=atonce_")
	type result struct {
		from, to int
		err      error
	}
	results := make(chan result)
	for range 8 {
		b := testkit.Open(t, base)
		t.Cleanup(func() { b.Close() })
		go func() {
			from, to, err := b.(driver.Migrator).Migrate(context.Background())
			results <- result{from, to, err}
		}()
	}
	made := 0
	for range 8 {
		r := <-results
		if r.err != nil || r.to < 1 {
			t.Errorf("migrate: %+v", r)
		}
		if r.from < r.to {
			made++
		}
	}
	if made != 1 {
		t.Errorf("%d of 8 made the tables", made)
	}
}

// A database of a newer hasp is refused, and left alone.
func TestNewerSchema(t *testing.T) {
	t.Parallel()
	m := backends.SharedMariaDB(t)
	base := sqlkit.With(sqlkit.MariaDBStore(t, m), "prefix=newer_")
	testkit.Release(t, testkit.Lock(t, client(t, base), "a"))
	sqlkit.Exec(t, sqlkit.MariaDBAdmin(t, m), "INSERT INTO locks.newer_schema VALUES (99)")
	if _, err := client(t, base).Mutex("a").Lock(ctx(t)); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("locked in tables of version 99: %v", err)
	}
	b := testkit.Open(t, base)
	defer b.Close()
	if _, _, err := b.(driver.Migrator).Migrate(ctx(t)); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("migrated tables of version 99: %v", err)
	}
}

// waitsForLock reports whether some transaction waits for a row, in a statement with this in
// its text. InnoDB looks anew only if it was not asked for a tenth of a second.
func waitsForLock(t testing.TB, db *sql.DB, text string) bool {
	time.Sleep(150 * time.Millisecond)
	return number(t, db, "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT' AND INSTR(trx_query, '"+text+"') > 0") > 0
}
