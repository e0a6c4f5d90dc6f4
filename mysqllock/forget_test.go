package mysqllock

import (
	"context"
	cryptorand "crypto/rand"
	"database/sql"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// sweep has a sweep due, and makes it.
func sweep(ctx context.Context, t *testing.T, s *store) {
	t.Helper()
	if _, err := run(ctx, s.work, s.named("UPDATE {p}store SET swept = '1970-01-01'")); err != nil {
		t.Fatal(err)
	}
	if _, err := run(ctx, s.work, s.named("CALL {p}sweep_1(?)", s.opts.Retention.Microseconds())); err != nil {
		t.Fatal(err)
	}
}

// Names that were idle for long are forgotten, and their next token is greater than
// their last all the same. Names in use stay, however old their last token is.
func TestForgottenNames(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	u, err := url.Parse(backends.SharedMariaDB(t).URL() + "?prefix=forget_&retention=1h")
	if err != nil {
		t.Fatal(err)
	}
	b, err := openURL(ctx, u)
	if err != nil {
		t.Fatal(err)
	}
	s := b.(*table)
	c, err := hasp.New(b)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	lock := func(name string) *hasp.Lease {
		l, err := c.Mutex(name).Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	release := func(l *hasp.Lease) uint64 {
		if err := l.Release(ctx); err != nil {
			t.Fatal(err)
		}
		return l.Token()
	}
	last := release(lock("unused"))
	held := lock("held")
	release(lock("young"))
	if _, err := run(ctx, s.work, "UPDATE forget_names SET seq = seq - 7200000000 WHERE name <> 'young'"); err != nil {
		t.Fatal(err)
	}
	sweep(ctx, t, s.store)
	// A renewal may have found that a sweep was due, and be at it.
	testkit.Until(t, "the sweep", func() error {
		var left, of int
		if err := row(ctx, s.work, "SELECT COUNT(*), SUM(name IN ('held', 'young')) FROM forget_names", &left, &of); err != nil {
			return err
		}
		if left != 2 || of != 2 {
			return fmt.Errorf("%d names are left, %d of them in use or young; want these two", left, of)
		}
		return nil
	})
	if next := release(lock("unused")); next <= last {
		t.Errorf("token %d after %d", next, last)
	}
	release(held)
}

// What getlock keeps of a name is forgotten as well, its token grows over that, and a
// lock that is held for longer than names are remembered keeps its row, by which others see
// who holds it.
func TestForgottenTokens(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	for _, strategy := range []string{"getlock", "getlock&names=plain"} {
		t.Run(strategy, func(t *testing.T) {
			prefix := "tokens_" + strings.Map(func(r rune) rune {
				if r >= 'a' && r <= 'z' {
					return r
				}
				return -1
			}, strategy) + "_"
			b := openHere(t, "", "retention=1h&prefix="+prefix+"&strategy="+strategy).(*bound)
			s, _, err := b.Open(ctx, driver.SessionOptions{TTL: time.Hour, Gone: func(string, error) {}})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close(context.Background())
			lock := func(name string) (driver.Ticket, uint64) {
				k := s.Ticket(driver.Request{Name: name, ID: name + "-id", Units: driver.Whole, Capacity: driver.Whole, Owner: "me"})
				v, err := k.Enqueue(ctx)
				if err != nil || !v.Held {
					t.Fatalf("%s: %+v, %v", name, v, err)
				}
				testkit.Until(t, "the record of "+name, func() error {
					list, err := b.List(ctx, name, 0)
					if err != nil || len(list) != 1 || list[0].Owner != "me" {
						return fmt.Errorf("%s: %+v, %v", name, list, err)
					}
					return nil
				})
				return k, v.Token
			}
			free := func(k driver.Ticket) {
				if err := k.Leave(ctx); err != nil {
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
			if _, err := run(ctx, b.work, b.named("UPDATE {p}bound SET seq = seq - 7200000000 WHERE name <> 'young'")); err != nil {
				t.Fatal(err)
			}
			sweep(ctx, t, b.store)
			var tokens, old int
			if err := row(ctx, b.work, b.named("SELECT COUNT(*), COALESCE(SUM(name = 'unused'), 0) FROM {p}bound"), &tokens, &old); err != nil {
				t.Fatal(err)
			}
			if tokens != 2 || old != 0 {
				t.Errorf("%d tokens are left, %d of the name that is unused; want those of the two others", tokens, old)
			}
			if list, err := b.List(ctx, "held", 0); err != nil || len(list) != 1 || list[0].Owner != "me" || list[0].Seq == 0 {
				t.Errorf("a lock that is held for long: %+v, %v", list, err)
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
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	var stores []*table
	var sessions []*session
	for range 5 {
		b := openHere(t, "", "prefix=once_").(*table)
		stores, sessions = append(stores, b), append(sessions, begin(ctx, t, b))
	}
	exec := func(text string, args ...any) {
		t.Helper()
		if _, err := run(ctx, stores[0].work, stores[0].named(text, args...)); err != nil {
			t.Fatal(err)
		}
	}
	left := func() (n int) {
		if err := row(ctx, stores[0].work, stores[0].named("SELECT COUNT(*) FROM {p}names"), &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	renew := func() {
		t.Helper()
		for _, s := range sessions {
			if _, err := s.KeepAlive(ctx); err != nil {
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
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	b := openHere(t, "", "prefix=little_").(*table)
	begin(ctx, t, b)
	for _, text := range []string{
		"INSERT INTO {p}names (name, seq) SELECT CONCAT('young', seq), 1000000 * UNIX_TIMESTAMP() FROM seq_1_to_3000",
		"INSERT INTO {p}names (name, seq) SELECT CONCAT('old', seq), 1 FROM seq_1_to_10",
		"INSERT INTO {p}bound (name, seq, id, connection, since, owner, lock_name) SELECT CONCAT('young', seq), 1000000 * UNIX_TIMESTAMP(), '', 0, 0, '', '' FROM seq_1_to_3000",
		"UPDATE {p}store SET swept = '1970-01-01'",
	} {
		if _, err := run(ctx, b.work, b.named(text)); err != nil {
			t.Fatal(err)
		}
	}
	c, err := b.work.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	reads := func() (n int64) {
		if err := each(ctx, c, "SHOW SESSION STATUS LIKE 'Handler_read%'", func(r *sql.Rows) error {
			var value int64
			err := r.Scan(new(string), &value)
			n += value
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := reads()
	if _, err := run(ctx, c, b.named("CALL {p}sweep_1(?)", b.opts.Retention.Microseconds())); err != nil {
		t.Fatal(err)
	}
	if n := reads() - before; n > 300 {
		t.Errorf("%d rows were read to forget 10 of 3010", n)
	}
	var left int
	if err := row(ctx, b.work, b.named("SELECT COUNT(*) FROM {p}names"), &left); err != nil || left != 3000 {
		t.Errorf("%d names are left, want 3000: %v", left, err)
	}
}

// A client watches an idle name: that it is forgotten is no change of it.
func TestWatchOfForgottenName(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	b := openHere(t, "", "prefix=watchold_&retention=1h").(*table)
	s := begin(ctx, t, b)
	use := func() {
		k := mutex(s, "idle", cryptorand.Text())
		enter(ctx, t, k, true)
		if err := k.Leave(ctx); err != nil {
			t.Fatal(err)
		}
	}
	use()
	if _, err := run(ctx, b.work, b.named("UPDATE {p}names SET seq = seq - 7200000000")); err != nil {
		t.Fatal(err)
	}
	changes := make(chan struct{}, 100)
	go func() { _ = b.Watch(ctx, "idle", func() { changes <- struct{}{} }) }()
	<-changes // the watch stands
	sweep(ctx, t, b.store)
	select {
	case <-changes:
		t.Error("told of a change when the name was forgotten")
	case <-time.After(2 * mostWatch):
	}
	use()
	select {
	case <-changes:
	case <-ctx.Done():
		t.Error("not told of a change afterwards")
	}
}
