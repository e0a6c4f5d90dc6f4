package mysqllock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/mysqllock"
)

// Ten goroutines share a pool of four connections, and use it under their locks: all get on. If
// locks had all of the connections, each holder's statement would wait for another holder to
// release.
func TestLimitedPool(t *testing.T) {
	t.Parallel()
	m := backends.SharedMariaDB(t)
	sqlkit.MariaDBStore(t, m)
	for _, strategy := range []mysqllock.Strategy{mysqllock.StrategyGetLock, mysqllock.StrategyTable} {
		t.Run(string(strategy), func(t *testing.T) {
			db := sqlkit.MariaDBAt(t, m.Addr, "locks")
			db.SetMaxOpenConns(4)
			b, err := mysqllock.New(db, &mysqllock.Options{Strategy: strategy})
			if err != nil {
				t.Fatal(err)
			}
			c := testkit.ClientOn(t, b, hasp.WithTTL(calm))
			var all sync.WaitGroup
			for i := range 10 {
				all.Go(func() {
					for j := range 5 {
						l, err := c.Mutex(fmt.Sprint("limited-", i)).Lock(ctx(t))
						if err != nil {
							t.Errorf("lock %d of goroutine %d: %v", j, i, err)
							return
						}
						if _, err := db.ExecContext(ctx(t), "DO SLEEP(0.03)"); err != nil { // longer than until the holder is recorded
							t.Errorf("a statement under the lock: %v", err)
						}
						l.Unlock()
					}
				})
			}
			all.Wait()
		})
	}
}

// A pool that lends too few is refused at once, and what waits for a connection says for what.
func TestPoolTooSmall(t *testing.T) {
	t.Parallel()
	m := backends.SharedMariaDB(t)
	sqlkit.MariaDBStore(t, m)
	for strategy, most := range map[mysqllock.Strategy]int{mysqllock.StrategyGetLock: 1, mysqllock.StrategyTable: 2} {
		db := sqlkit.MariaDBAt(t, m.Addr, "locks")
		db.SetMaxOpenConns(most)
		b, err := mysqllock.New(db, &mysqllock.Options{Strategy: strategy})
		if err != nil {
			t.Fatal(err)
		}
		_, err = testkit.ClientOn(t, b).Mutex("small").Lock(ctx(t))
		if !errors.Is(err, hasp.ErrInvalid) || !strings.Contains(err.Error(), "SetMaxOpenConns") {
			t.Errorf("%s with %d connections: %v", strategy, most, err)
		}
	}
	db := sqlkit.MariaDBAt(t, m.Addr, "locks")
	db.SetMaxOpenConns(2)
	b, err := mysqllock.New(db, &mysqllock.Options{Strategy: mysqllock.StrategyGetLock})
	if err != nil {
		t.Fatal(err)
	}
	c := testkit.ClientOn(t, b, hasp.WithTTL(calm))
	testkit.Lock(t, c, "small-1")
	short, cancel := context.WithTimeout(ctx(t), 100*time.Millisecond)
	defer cancel()
	_, err = c.Mutex("small-2").Lock(short)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "SetMaxOpenConns") {
		t.Errorf("without a connection left: %v", err)
	}
}
