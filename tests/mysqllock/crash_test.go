package mysqllock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/history"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// CrashesEnv is how often TestCrashes kills the server.
const CrashesEnv = "HASP_CRASHES"

func crashes(t *testing.T, least int) int {
	t.Helper()
	if n, err := strconv.Atoi(os.Getenv(CrashesEnv)); err == nil {
		return n
	}
	return least
}

// The server is killed again and again under load: clients contend for one name, others each lock a
// name without contention, and a lock is held over each crash. No two hold, no token comes back,
// and what was held is still held. The control is a server that does not write its log.
func TestCrashes(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{"table", "getlock"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			m := backends.StartMariaDB(t, backends.MariaDBOptions{})
			rec := history.New()
			base := sqlkit.With(sqlkit.MariaDBStore(t, m), "strategy="+strategy)
			all, cancel := context.WithCancel(context.Background())
			defer cancel()
			crew := workers(t, all, rec, base, "crashes", 6)
			for i := range 4 {
				c, who := client(t, base, hasp.WithTTL(T)), fmt.Sprint("alone-", i)
				crew.Go(func() {
					for all.Err() == nil {
						if turn(all, rec, c, who, who) {
							crew.granted.Add(1)
						}
					}
				})
			}
			more := func() {
				before := crew.granted.Load()
				testkit.Eventually(t, "locks", func() bool {
					keepUp(t, m)
					return crew.granted.Load() > before+20
				})
			}
			for range crashes(t, 3) {
				more()
				if strategy != "table" {
					crash(t, m)
				} else if kept, another := heldOverCrash(t, m, base); !kept || another {
					t.Errorf("held over the crash: %t, and another got it: %t", kept, another)
				}
			}
			more()
			cancel()
			crew.Wait()
			check(t, recorded(t, rec), strategy)
			t.Logf("%d crashes, %d locks", crashes(t, 3), crew.granted.Load())
		})
	}
	t.Run("control", func(t *testing.T) {
		t.Parallel()
		m := backends.StartMariaDB(t, backends.MariaDBOptions{Config: []string{
			"innodb_flush_log_at_trx_commit=0", "innodb_flush_log_at_timeout=2700"}})
		base := sqlkit.MariaDBStore(t, m)
		testkit.Release(t, testkit.Lock(t, client(t, base), "warm-up"))
		for range 10 {
			sqlkit.Exec(t, sqlkit.MariaDBAdmin(t, m), "FLUSH ENGINE LOGS")
			if kept, another := heldOverCrash(t, m, base); kept && another {
				return
			}
		}
		t.Error("a server that forgets its last commits was not caught in ten crashes")
	})
}

// heldOverCrash reports whether a lock that was held when the server was killed is trusted
// afterwards, and whether another client gets it.
func heldOverCrash(t *testing.T, m *backends.MariaDB, base string) (kept, another bool) {
	t.Helper()
	name := fmt.Sprint("kept-", rand.Uint64())
	holder, other := client(t, base, hasp.WithTTL(8*slack)), client(t, base) // no renewal comes in between
	defer holder.Close()
	defer other.Close()
	l := testkit.Lock(t, holder, name)
	crash(t, m)
	testkit.Eventually(t, "an answer after the crash", func() bool {
		keepUp(t, m)
		_, err := other.Mutex(name).TryLock(ctx(t))
		another = err == nil
		return err == nil || errors.Is(err, hasp.ErrBusy)
	})
	return l.Held(), another
}

// keepUp is the service manager: a server that its known fault has ended after a crash is started
// again.
func keepUp(t *testing.T, m *backends.MariaDB) {
	t.Helper()
	if !m.EndedByFault() {
		return
	}
	t.Log("MariaDB has ended by itself, and is started again")
	if err := m.Restart(); err != nil {
		t.Fatal(err)
	}
}

func crash(t *testing.T, m *backends.MariaDB) {
	t.Helper()
	if err := m.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := m.Restart(); err != nil {
		t.Fatal(err)
	}
}
