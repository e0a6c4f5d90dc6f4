package mysqllock_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// microseconds is SQL for a moment as a number.
const microseconds = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', "

// A statement's moment is taken when it begins. This renewal began five seconds ago, and comes
// when a later one has been answered: what the client was told of stays (S1). The session
// lives on, although the expiry did not change.
func TestLateRenewalTakesNothingBack(t *testing.T) {
	t.Parallel()
	storeURL, db := prefixed(t, "lateness_")
	s := queuer(t, storeURL)
	expires := func() int64 { return number(t, db, "SELECT "+microseconds+"expires) FROM lateness_sessions") }
	if _, err := s.KeepAlive(ctx(t)); err != nil {
		t.Fatal(err)
	}
	before := expires()
	late := func() (there bool) {
		tx := testkit.Must[*sql.Conn](t)(db.Conn(ctx(t)))
		defer tx.Close()
		defer sqlkit.Exec(t, tx, "SET timestamp = DEFAULT")
		var id string
		if err := tx.QueryRowContext(ctx(t), "SELECT CONVERT(id USING ascii) FROM lateness_sessions").Scan(&id); err != nil {
			t.Fatal(err)
		}
		sqlkit.Exec(t, tx, "SET timestamp = UNIX_TIMESTAMP(NOW(6)) - 5")
		var more [6]any
		for i := range more {
			more[i] = new(any)
		}
		text := fmt.Sprintf("CALL lateness_renew_2('%s', %d)", id, time.Hour.Microseconds())
		if err := tx.QueryRowContext(ctx(t), text).Scan(append([]any{&there}, more[:]...)...); err != nil {
			t.Fatal(err)
		}
		return there
	}
	if !late() {
		t.Error("a living session is said to have expired")
	}
	if after := expires(); after < before {
		t.Errorf("the expiry went back by %s", time.Duration(before-after)*time.Microsecond)
	}
	// A session that was declared dead is not brought back by an old moment.
	sqlkit.Exec(t, db, "UPDATE lateness_sessions SET expires = '1970-01-01'")
	if late() || expires() != 0 {
		t.Error("a dead session was renewed")
	}
}

// frozen is a separate server, since all that write wait while it is frozen.
type frozen struct {
	t    *testing.T
	base string
	db   *sql.DB
	lock *sql.Conn
}

func freezer(t *testing.T) *frozen {
	t.Helper()
	m := backends.StartMariaDB(t, backends.MariaDBOptions{})
	f := &frozen{t: t, base: sqlkit.MariaDBStore(t, m), db: sqlkit.MySQL(t, m.Addr, m.User, m.Password, "locks")}
	f.lock = testkit.Must[*sql.Conn](t)(f.db.Conn(ctx(t)))
	t.Cleanup(func() { f.lock.Close() })
	return f
}

// wait returns when n statements on a table of ours are under way at the server.
func (f *frozen) wait(n int64, table string) {
	f.t.Helper()
	testkit.Until(f.t, "the statements on "+table, func() error {
		var is int64
		text := fmt.Sprintf("SELECT COUNT(*) FROM information_schema.processlist WHERE INSTR(info, 'hasp_%s') > 0 AND command <> 'Sleep' AND id <> CONNECTION_ID()", table)
		if err := f.lock.QueryRowContext(ctx(f.t), text).Scan(&is); err != nil || is != n {
			return fmt.Errorf("%d are under way, want %d: %v", is, n, err)
		}
		return nil
	})
}

// now is the server's moment, in microseconds.
func (f *frozen) now() (us int64) {
	f.t.Helper()
	if err := f.lock.QueryRowContext(ctx(f.t), "SELECT "+microseconds+"UTC_TIMESTAMP(6))").Scan(&us); err != nil {
		f.t.Fatal(err)
	}
	return us
}

// twice begins a call at the frozen server, gives it up, and begins another; then the server goes on,
// and the second must have been done. between is called before the second.
func (f *frozen) twice(statement string, between func(), first, second func(context.Context) error) {
	f.t.Helper()
	sqlkit.Exec(f.t, f.lock, "FLUSH TABLES WITH READ LOCK")
	given, giveUp := context.WithCancel(ctx(f.t))
	answers := make(chan error, 2)
	go func() { answers <- first(given) }()
	f.wait(1, statement)
	giveUp()
	if err := testkit.Await(f.t, "the end of what was given up", answers); err == nil {
		f.t.Fatal("done at a frozen server")
	}
	between()
	go func() { answers <- second(ctx(f.t)) }()
	f.wait(2, statement)
	sqlkit.Exec(f.t, f.lock, "UNLOCK TABLES")
	if err := testkit.Await(f.t, "the second", answers); err != nil {
		f.t.Fatal(err)
	}
	f.wait(0, statement)
}

// rounds is how often an order is left to chance, of which one in two is wrong.
const rounds = 10

// FLUSH TABLES WITH READ LOCK, as backups say it: a renewal waits, is given up, and the next
// one waits beside it. Whichever comes last, the expiry is not before that of the one that was
// answered.
func TestFrozenRenewals(t *testing.T) {
	t.Parallel()
	f := freezer(t)
	s := queuer(t, f.base)
	renew := func(ctx context.Context) error { _, err := s.KeepAlive(ctx); return err }
	for range rounds {
		var sent int64
		f.twice("sessions", func() { sent = f.now() }, renew, renew)
		expires := number(t, f.db, "SELECT "+microseconds+"expires) FROM hasp_sessions")
		if missing := sent + time.Hour.Microseconds() - expires; missing > 0 {
			t.Fatalf("a renewal that was given up took %d us of what a later one was granted", missing)
		}
	}
}

// The same with values: the one that was given up does not replace the one that was confirmed.
func TestFrozenPublications(t *testing.T) {
	t.Parallel()
	f := freezer(t)
	b := testkit.Open(t, f.base)
	t.Cleanup(func() { b.Close() })
	k := enqueue(t, testkit.Session(t, b, time.Hour, nil), "published", true).(driver.Publisher)
	for i := range rounds {
		publish := func(value string) func(context.Context) error {
			return func(ctx context.Context) error { return k.Publish(ctx, []byte(value)) }
		}
		want := fmt.Sprint("newer ", i)
		f.twice("names SET h_value", func() {}, publish(fmt.Sprint("older ", i)), publish(want))
		list, err := b.List(ctx(t), "published", 0)
		if err != nil || len(list) != 1 {
			t.Fatalf("%+v, %v", list, err)
		}
		if got := string(list[0].Value); got != want {
			t.Fatalf("%q was confirmed, and the value is %q", want, got)
		}
	}
}
