package mysqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/history"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/tests/internal/linear"
)

// crew are workers and how often one of them was granted.
type crew struct {
	sync.WaitGroup
	granted atomic.Int64
}

// workers lock one name in turns, each with a separate client, for as long as ctx lasts, and
// record what they believe.
func workers(t *testing.T, ctx context.Context, rec *history.Recorder, storeURL, name string, n int) *crew {
	t.Helper()
	var w crew
	for i := range n {
		c := client(t, storeURL, hasp.WithTTL(T))
		w.Go(func() {
			for ctx.Err() == nil {
				if turn(ctx, rec, c, fmt.Sprint("client-", i), name) {
					w.granted.Add(1)
				}
			}
		})
	}
	return &w
}

// turn is one acquisition. Its context is ended by the end of the test alone: an error is
// something that happened to it.
func turn(ctx context.Context, rec *history.Recorder, c *hasp.Client, who, name string) (granted bool) {
	a := rec.Acquire(who, name, history.Exclusive())
	l, err := c.Mutex(name).Lock(ctx)
	if err != nil {
		a.Failed(err)
		time.Sleep(10 * time.Millisecond) // a server that is down is not asked in a busy loop
		return false
	}
	a.Granted(l.Token(), 0)
	stop := a.Watch(l.Held, l.Context().Done(), time.Millisecond)
	hold := rand.N(5 * time.Millisecond)
	if rand.N(6) == 0 {
		hold = 30 * time.Millisecond // getlock then records the holder
	}
	time.Sleep(hold)
	stop()
	a.Releasing()
	out, cancel := context.WithTimeout(context.Background(), slack)
	defer cancel()
	switch err := l.Release(out); {
	case err == nil:
		a.Released()
	case errors.Is(err, hasp.ErrLost), errors.Is(err, hasp.ErrNotHeld):
		a.NotHeld(err)
	default:
		a.ReleaseUnknown(err)
	}
	return true
}

// check demands of a table what a lease promises. A lock that is bound to a connection ends at
// the server first, and its holder hears of it a moment later: there the tokens must tell
// them apart, and TestKillIsNoticed looks at the moment.
func check(t *testing.T, h history.History, strategy string) {
	t.Helper()
	if strategy == "table" {
		linear.Require(t, h, linear.Options{Fencing: true})
		return
	}
	for i := range h {
		// How long it certainly held is not known: an answer that was sent before the connection
		// was killed may be read when another has had the lock.
		if o := &h[i]; o.Release != history.Released {
			o.Asked, o.LastHeld = true, 0
		}
	}
	for _, v := range history.Tokens(h) {
		t.Error(v)
	}
}

// killer kills connections of the locks' user at random, but its own, until the victims
// have done enough or ctx ends. Two hundred a second are too many for a slow machine: where
// nothing was done between two kills, it waits longer.
func killer(ctx context.Context, db *sql.DB, done func() int64, enough func(killed int) bool) (killed int) {
	const least, most = 5 * time.Millisecond, 320 * time.Millisecond
	for pause, before := least, int64(0); ctx.Err() == nil && !enough(killed); time.Sleep(pause) {
		var id int64
		err := db.QueryRow("SELECT id FROM information_schema.processlist WHERE user = 'hasp' AND id <> CONNECTION_ID() ORDER BY RAND() LIMIT 1").Scan(&id)
		if err == nil {
			if _, err = db.Exec(fmt.Sprint("KILL CONNECTION ", id)); err == nil {
				killed++
			}
		}
		if now := done(); now > before {
			pause, before = least, now
		} else {
			pause = min(2*pause, most)
		}
	}
	return killed
}

// Connections are killed at random: waiters', holders', those that renew and those that
// release. No client trusts a lock that another has.
func TestKilledConnections(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	m := backends.StartMariaDB(t, backends.MariaDBOptions{})
	base := sqlkit.MariaDBStore(t, m)
	for _, strategy := range []string{"table", "getlock"} {
		t.Run(strategy, func(t *testing.T) {
			rec := history.New()
			all, cancel := context.WithTimeout(context.Background(), slack)
			defer cancel()
			db := sqlkit.MariaDBAdmin(t, m)
			db.SetMaxOpenConns(1)
			crew := workers(t, all, rec, sqlkit.With(base, "strategy="+strategy), "faults", 6)
			killed := killer(all, db, crew.granted.Load, func(killed int) bool {
				return killed >= 200 && crew.granted.Load() >= 100
			})
			cancel()
			crew.Wait()
			check(t, recorded(t, rec), strategy)
			if n := crew.granted.Load(); killed < 20 || n < 20 {
				t.Errorf("%d connections killed, %d locks: this has tested little", killed, n)
			}
			t.Logf("%d connections killed, %d locks", killed, crew.granted.Load())
		})
	}
	t.Run("control", func(t *testing.T) { killedConnectionsControl(t, m) })
}

// The control: a naive lock, GET_LOCK on a connection that is not used while it is held, is caught
// by the same checks.
func killedConnectionsControl(t *testing.T, m *backends.MariaDB) {
	rec := history.New()
	all, cancel := context.WithTimeout(context.Background(), slack)
	defer cancel()
	var wg sync.WaitGroup
	var turns atomic.Int64
	for i := range 6 {
		db := sqlkit.MySQL(t, m.Addr, m.User, m.Password, "locks")
		wg.Go(func() {
			for all.Err() == nil {
				naiveTurn(all, rec, db, fmt.Sprint("client-", i))
				turns.Add(1)
			}
		})
	}
	db := sqlkit.MariaDBAdmin(t, m)
	db.SetMaxOpenConns(1)
	caught := func() bool {
		return len(history.Exclusion(recorded(t, rec))) > 0
	}
	killer(all, db, turns.Load, func(killed int) bool { return killed%50 == 49 && caught() })
	cancel()
	wg.Wait()
	if !caught() {
		t.Error("holders that do not look after their connections were not caught")
	}
}

func naiveTurn(ctx context.Context, rec *history.Recorder, db *sql.DB, who string) {
	c, err := db.Conn(ctx)
	if err != nil {
		return
	}
	defer c.Close()
	a := rec.Acquire(who, "faults", history.Exclusive())
	var got sql.NullInt64
	if err := c.QueryRowContext(ctx, "SELECT GET_LOCK('faults', 2)").Scan(&got); err != nil || got.Int64 != 1 {
		a.Failed(err)
		return
	}
	a.Granted(0, 0)
	stop := a.Watch(func() bool { return true }, nil, time.Millisecond)
	time.Sleep(20 * time.Millisecond)
	stop()
	a.Releasing()
	_, _ = c.ExecContext(context.Background(), "DO RELEASE_LOCK('faults')") // the result is not looked at either
	a.Released()
}

// The server crashes, and is stopped, while six clients contend. What it has committed, it
// still knows: a lock that is held over the outage is still held. The control is GET_LOCK on
// a connection that is not used: the same check finds two holders.
func TestRestart(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{"table", "getlock"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			m := backends.StartMariaDB(t, backends.MariaDBOptions{})
			base := sqlkit.With(sqlkit.MariaDBStore(t, m), "strategy="+strategy)
			kept := testkit.Lock(t, client(t, base, hasp.WithTTL(4*slack)), "kept")
			rec, control := history.New(), history.New()
			before, beforeHeld := naiveHolder(t, control, m, "before")
			all, cancel := context.WithCancel(context.Background())
			defer cancel()
			crew := workers(t, all, rec, base, "faults", 6)
			for _, end := range []func() error{m.Kill, m.Stop} {
				time.Sleep(500 * time.Millisecond)
				if err := end(); err != nil {
					t.Fatal(err)
				}
				if err := m.Restart(); err != nil {
					t.Fatal(err)
				}
			}
			granted := crew.granted.Load()
			testkit.Eventually(t, "locks after the restart", func() bool { return crew.granted.Load() > granted+5 })
			cancel()
			crew.Wait()
			check(t, recorded(t, rec), strategy)
			if held := kept.Held(); held != (strategy == "table") {
				t.Errorf("held over two restarts: %t (%v)", held, kept.Err())
			}
			after, afterHeld := naiveHolder(t, control, m, "after")
			time.Sleep(20 * time.Millisecond)
			afterHeld()
			beforeHeld()
			after.Released()
			before.Released()
			if len(history.Exclusion(recorded(t, control))) == 0 {
				t.Error("a holder that does not look after its connection was not caught")
			}
		})
	}
}

// naiveHolder takes a lock and believes in it until stop.
func naiveHolder(t *testing.T, rec *history.Recorder, m *backends.MariaDB, who string) (a *history.Attempt, stop func()) {
	a = rec.Acquire(who, "faults", history.Exclusive())
	sqlkit.NaiveGetLock(ctx(t), t, sqlkit.MariaDBAt(t, m.Addr, "locks"), "faults")
	a.Granted(0, 0)
	watched := a.Watch(func() bool { return true }, nil, time.Millisecond)
	return a, func() { watched(); a.Releasing() }
}

func recorded(t *testing.T, rec *history.Recorder) history.History {
	t.Helper()
	h, err := rec.History()
	if err != nil {
		t.Fatal(err)
	}
	return h
}
