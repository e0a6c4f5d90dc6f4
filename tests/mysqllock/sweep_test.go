package mysqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/history"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// despiteDeadlocks repeats what the server ends for a deadlock with those who lock. The driver
// leaves a sweep that was ended to the next one.
func despiteDeadlocks(t *testing.T, db *sql.DB, text string) {
	t.Helper()
	for {
		_, err := db.ExecContext(t.Context(), text)
		var e *mysql.MySQLError
		switch {
		case err == nil:
			return
		case !errors.As(err, &e) || e.Number != 1213: // ER_LOCK_DEADLOCK
			t.Fatalf("%s: %v", text, err)
		}
	}
}

// Names are made old and swept, as fast as it goes, while three clients lock them: no
// client trusts a lock that another has, tokens grow, and none waits for ever. S1, S2, L2.
func TestSweepsAmongLocks(t *testing.T) {
	t.Parallel()
	m := backends.SharedMariaDB(t)
	for _, strategy := range []string{"table", "getlock"} {
		t.Run(strategy, func(t *testing.T) {
			prefix := "among" + strategy + "_"
			base := sqlkit.With(sqlkit.MariaDBStore(t, m), "retention=1h&prefix="+prefix+"&strategy="+strategy)
			testkit.Release(t, testkit.Lock(t, client(t, base), "warm-up"))
			db := sqlkit.MySQL(t, m.Addr, m.User, m.Password, "locks")
			tokens := map[bool]string{true: "names", false: "bound"}[strategy == "table"]
			rec := history.New()
			all, cancel := context.WithCancel(context.Background())
			defer cancel()
			stuck := time.AfterFunc(slack, cancel) // after the last lock
			defer stuck.Stop()
			var crew crew
			// A request takes the clock's time before it waits for the name, and a name may not
			// become two hours old meanwhile, which would turn tokens back: no client is at work
			// then.
			var ageing sync.RWMutex
			for i := range 3 {
				c := client(t, base, hasp.WithTTL(calm))
				crew.Go(func() {
					for all.Err() == nil {
						ageing.RLock()
						if turn(all, rec, c, fmt.Sprint("client-", i), fmt.Sprint("name-", rand.N(3))) {
							crew.granted.Add(1)
							stuck.Reset(slack)
						}
						ageing.RUnlock()
						time.Sleep(rand.N(5 * time.Millisecond)) // now and then it is free
					}
				})
			}
			before, swept := sqlkit.MySQLStatus(t, db, "Handler_delete"), 0
			for ; crew.granted.Load() < 300 && all.Err() == nil; swept++ {
				ageing.Lock()
				sqlkit.Exec(t, db, fmt.Sprintf("UPDATE %s%s SET seq = seq - 7200000000", prefix, tokens))
				ageing.Unlock()
				despiteDeadlocks(t, db, fmt.Sprintf("UPDATE %sstore SET swept = '1970-01-01'", prefix))
				despiteDeadlocks(t, db, fmt.Sprintf("CALL %ssweep_2(3600000000)", prefix))
			}
			cancel()
			crew.Wait()
			check(t, recorded(t, rec), strategy)
			if deleted := sqlkit.MySQLStatus(t, db, "Handler_delete") - before; swept < 10 || deleted < 10 {
				t.Errorf("%d sweeps, %d deletions: this has tested little", swept, deleted)
			}
			if n := crew.granted.Load(); n < 300 {
				t.Errorf("%d locks, and no other for %s", n, slack)
			}
		})
	}
}
