package mysqllock

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/backends"
)

// A statement's moment is taken when it begins. This renewal began five seconds ago, and comes
// when a later one has been answered: what the client was told of stays (S1). The session
// lives on, although the expiry did not change.
func TestLateRenewalTakesNothingBack(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	b := openHere(t, "", "prefix=lateness_").(*table)
	s := begin(ctx, t, b)
	expires := func() (us int64) {
		if err := row(ctx, b.work, b.named("SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', expires) FROM {p}sessions WHERE id = ?", s.id), &us); err != nil {
			t.Fatal(err)
		}
		return us
	}
	if _, err := s.KeepAlive(ctx); err != nil {
		t.Fatal(err)
	}
	before := expires()
	late := func(id string) (there bool) {
		c, err := b.work.Conn(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer discard(c) // with the moment
		if _, err := run(ctx, c, "SET timestamp = UNIX_TIMESTAMP(NOW(6)) - 5"); err != nil {
			t.Fatal(err)
		}
		var more [6]any
		for i := range more {
			more[i] = new(sql.RawBytes)
		}
		if err := row(ctx, c, b.named("CALL {p}renew_1(?, ?)", id, s.Options.TTL.Microseconds()), append([]any{&there}, more[:]...)...); err != nil {
			t.Fatal(err)
		}
		return there
	}
	if !late(s.id) {
		t.Error("a living session is said to have expired")
	}
	if after := expires(); after < before {
		t.Errorf("the expiry went back by %s", time.Duration(before-after)*time.Microsecond)
	}
	// A session that was declared dead is not brought back by an old moment.
	if _, err := run(ctx, b.work, b.named("UPDATE {p}sessions SET expires = '1970-01-01' WHERE id = ?", s.id)); err != nil {
		t.Fatal(err)
	}
	if late(s.id) || expires() != 0 {
		t.Error("a dead session was renewed")
	}
}

// frozen is a separate server, since all that write wait while it is frozen.
type frozen struct {
	t    *testing.T
	ctx  context.Context
	b    *table
	lock *sql.Conn
}

func freezer(t *testing.T, ctx context.Context) *frozen {
	t.Helper()
	m := backends.StartMariaDB(t, backends.MariaDBOptions{})
	u, err := url.Parse(m.URL())
	if err != nil {
		t.Fatal(err)
	}
	b, err := openURL(ctx, u)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	f := &frozen{t: t, ctx: ctx, b: b.(*table)}
	if f.lock, err = f.b.kept.Conn(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.lock.Close() })
	return f
}

func (f *frozen) exec(text string) {
	f.t.Helper()
	if _, err := run(f.ctx, f.lock, text); err != nil {
		f.t.Fatal(err)
	}
}

// wait returns when n statements on a table of ours are under way at the server.
func (f *frozen) wait(n int, table string) {
	f.t.Helper()
	for is := -1; is != n; time.Sleep(5 * time.Millisecond) {
		text := fmt.Sprintf("SELECT COUNT(*) FROM information_schema.processlist WHERE INSTR(info, 'hasp_%s') > 0 AND command <> 'Sleep' AND id <> CONNECTION_ID()", table)
		if err := row(f.ctx, f.lock, text, &is); err != nil {
			f.t.Fatal(err)
		}
	}
}

// now is the server's moment, in microseconds.
func (f *frozen) now() (us int64) {
	f.t.Helper()
	if err := row(f.ctx, f.lock, "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))", &us); err != nil {
		f.t.Fatal(err)
	}
	return us
}

// rounds is how often an order is left to chance, of which one in two is wrong.
const rounds = 10

// FLUSH TABLES WITH READ LOCK, as backups say it: a renewal waits, is given up, and the next
// one waits beside it. Whichever comes last, the expiry is not before that of the one that was
// answered.
func TestFrozenRenewals(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 4*patience)
	defer cancel()
	f := freezer(t, ctx)
	s := begin(ctx, t, f.b)
	for range rounds {
		f.exec("FLUSH TABLES WITH READ LOCK")
		given, giveUp := context.WithCancel(ctx)
		first := make(chan error, 1)
		go func() { _, err := s.KeepAlive(given); first <- err }()
		f.wait(1, "sessions")
		giveUp()
		if err := <-first; err == nil {
			t.Fatal("renewed at a frozen server")
		}
		sent := f.now()
		second := make(chan error, 1)
		go func() { _, err := s.KeepAlive(ctx); second <- err }()
		f.wait(2, "sessions")
		f.exec("UNLOCK TABLES")
		if err := <-second; err != nil {
			t.Fatal(err)
		}
		f.wait(0, "sessions")
		var expires int64
		if err := row(ctx, f.b.work, f.b.named("SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', expires) FROM {p}sessions WHERE id = ?", s.id), &expires); err != nil {
			t.Fatal(err)
		}
		if missing := sent + s.Options.TTL.Microseconds() - expires; missing > 0 {
			t.Fatalf("a renewal that was given up took %d us of what a later one was granted", missing)
		}
	}
}

// The same with values: the one that was given up does not replace the one that was confirmed.
func TestFrozenPublications(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 4*patience)
	defer cancel()
	f := freezer(t, ctx)
	k := mutex(begin(ctx, t, f.b), "published", "publisher")
	enter(ctx, t, k, true)
	for i := range rounds {
		f.exec("FLUSH TABLES WITH READ LOCK")
		given, giveUp := context.WithCancel(ctx)
		first := make(chan error, 1)
		go func() { first <- k.Publish(given, []byte(fmt.Sprint("older ", i))) }()
		f.wait(1, "names SET h_value")
		giveUp()
		if err := <-first; err == nil {
			t.Fatal("published at a frozen server")
		}
		second := make(chan error, 1)
		want := fmt.Sprint("newer ", i)
		go func() { second <- k.Publish(ctx, []byte(want)) }()
		f.wait(2, "names SET h_value")
		f.exec("UNLOCK TABLES")
		if err := <-second; err != nil {
			t.Fatal(err)
		}
		f.wait(0, "names SET h_value")
		list, err := f.b.List(ctx, "published", 0)
		if err != nil || len(list) != 1 {
			t.Fatalf("%+v, %v", list, err)
		}
		if got := string(list[0].Value); got != want {
			t.Fatalf("%q was confirmed, and the value is %q", want, got)
		}
	}
}
