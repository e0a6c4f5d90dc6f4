package mysqllock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// S2: the connection of a row's lock is killed while its token is drawn. The next holder may have a
// lower token than that: so the first is not told that it holds.
func TestRowIsLostWhileItsTokenIsDrawn(t *testing.T) {
	t.Parallel()
	m := backends.StartMariaDB(t, backends.MariaDBOptions{})
	sqlkit.MariaDBStore(t, m)
	const passage = "  INSERT INTO slow_bound (name, seq, id, connection, since, owner)\n"
	broken(t, m, "slow_", passage, "  IF p_id = 'slow' THEN DO GET_LOCK('t:gate', 60); DO RELEASE_LOCK('t:gate'); END IF;\n"+passage)
	base := sqlkit.With(sqlkit.MariaDBStore(t, m), "prefix=slow_", "strategy=row")
	first, second := queuer(t, base), queuer(t, base)
	db := sqlkit.MariaDBAdmin(t, m)

	gate, err := db.Conn(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	defer gate.Close()
	sqlkit.Exec(t, gate, "DO GET_LOCK('t:gate', 0)")

	type answer struct {
		driver.Verdict
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		v, err := first.Ticket(request("a", "slow")).Enqueue(ctx(t))
		answered <- answer{v, err}
	}()
	testkit.Eventually(t, "the token is being drawn", func() bool {
		return number(t, db, "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock' AND info LIKE '%t:gate%'") == 1
	})
	holder := number(t, db, "SELECT trx_mysql_thread_id FROM information_schema.innodb_trx WHERE trx_rows_locked > 0")
	sqlkit.Exec(t, db, fmt.Sprint("KILL CONNECTION ", holder))
	var next driver.Verdict
	testkit.Eventually(t, "the next holds", func() bool {
		var err error
		next, err = second.Ticket(request("a", "next")).Enqueue(ctx(t))
		return err == nil && next.Held
	})
	sqlkit.Exec(t, gate, "DO RELEASE_LOCK('t:gate')")
	if a := <-answered; a.Held {
		t.Errorf("it holds with token %d beside the next one with %d", a.Token, next.Token)
	}
}

// Who looks for the holder has the row locked for a moment: a try beside that is not refused.
func TestRowIsFreeBesideLooks(t *testing.T) {
	t.Parallel()
	base := sqlkit.With(sqlkit.MariaDBStore(t, backends.SharedMariaDB(t)), "strategy=row")
	s := queuer(t, base)
	try := func(id string) {
		t.Helper()
		r := request("looked-at", id)
		r.NoWait = true
		ticket := s.Ticket(r)
		if v, err := ticket.Enqueue(ctx(t)); err != nil || !v.Held {
			t.Fatalf("%s: %+v, %v", id, v, err)
		}
		if err := ticket.Leave(ctx(t)); err != nil {
			t.Fatal(err)
		}
	}
	try("the record of a holder that is gone")
	b := testkit.Open(t, base)
	defer b.Close()
	looking, cancel := context.WithCancel(ctx(t))
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for looking.Err() == nil {
				_, _ = b.List(looking, "looked-at", 0)
			}
		})
	}
	defer wg.Wait()
	defer cancel()
	for i := range 200 {
		try(fmt.Sprint("try-", i))
	}
}
