package mysqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// isPing finds the packet of a sign of life: only held locks of getlock send any.
func isPing(chunk []byte) bool { return len(chunk) == 5 && chunk[3] == 0 && chunk[4] == 0x0e }

// One connection of a client falls silent: the others are renewed, and its own lock keeps what is
// left of its time until it is told to be lost. The next renewal does not wait for it.
func TestSilentConnectionCostsItsLock(t *testing.T) {
	t.Parallel()
	const ttl = 12 * time.Second
	p, u := proxied(t)
	b := testkit.Open(t, sqlkit.With(u, "strategy=getlock"))
	t.Cleanup(func() { b.Close() })
	gone := make(chan string, 2)
	s := testkit.Session(t, b, ttl, func(id string, _ error) { gone <- id })
	for _, name := range []string{"silent-a", "silent-b"} {
		testkit.Held(t, s.Ticket(testkit.RequestAs(name, name)))
	}
	p.Lose(faultnet.Down, math.MaxInt, isPing)
	short, cancel := context.WithTimeout(ctx(t), ttl/4)
	defer cancel()
	granted, err := s.KeepAlive(short)
	partial := new(driver.PartialRenewal)
	if !errors.As(err, &partial) || len(partial.Late) != 1 || partial.Granted != ttl {
		t.Fatalf("%s, %v; want that one of two is late", granted, err)
	}
	for id, left := range partial.Late {
		if left <= 0 || left >= ttl {
			t.Errorf("%s has %s left", id, left)
		}
		if lost := testkit.Await(t, "the loss", gone); lost != id {
			t.Errorf("%s is late, and %s was lost", id, lost)
		}
	}
	if granted, err := s.KeepAlive(ctx(t)); granted != ttl || err != nil {
		t.Errorf("without it: %s, %v", granted, err)
	}
	if len(gone) > 0 {
		t.Errorf("%s was lost as well", <-gone)
	}
}

// The server hears of the end of a connection of which the client hears nothing, and gives the lock
// on at once: so a holder whose connection is silent is told a margin before that, and not when the
// next one may hold already.
func TestSilentHolderIsToldFirst(t *testing.T) {
	t.Parallel()
	m := backends.SharedMariaDB(t)
	db := sqlkit.MariaDBAdmin(t, m)
	p, u := proxied(t)
	c := client(t, sqlkit.With(u, "strategy=getlock&fence=off&names=plain"), hasp.WithTTL(lasting))
	l := testkit.Lock(t, c, "told-first")
	holder := number(t, db, "SELECT IS_USED_LOCK('told-first')")
	p.Set(faultnet.Down, faultnet.Rule{Mode: faultnet.Hold})
	testkit.Await(t, "the loss", l.Context().Done())
	time.Sleep(200 * time.Millisecond) // as a busy machine does with what the holder is about to do
	used := sql.NullInt64{}
	if err := db.QueryRow("SELECT IS_USED_LOCK('told-first')").Scan(&used); err != nil {
		t.Fatal(err)
	}
	if used.Int64 != holder {
		t.Errorf("the lock was given up before its holder was told: %d has it, and had %d", used.Int64, holder)
	}
	testkit.Eventually(t, "a free lock", func() bool { return number(t, db, "SELECT IS_FREE_LOCK('told-first')") == 1 })
}

// A request's connection answers, and another one is silent on which something is asked beside it:
// the holder's record, or for a refused try the holder's name. The call returns.
func TestSilenceBesideRequest(t *testing.T) {
	t.Parallel()
	p, u := proxied(t)
	c := client(t, sqlkit.With(u, "strategy=getlock"), hasp.WithTTL(time.Second))
	l := testkit.LockDespiteErrors(t, c, "beside")
	noted(t, sqlkit.MariaDBAdmin(t, backends.SharedMariaDB(t)), l)
	if err := l.Release(ctx(t)); err != nil {
		t.Fatal(err)
	}
	silent := func(text string, call func(context.Context) error) {
		t.Helper()
		struck := p.Lose(faultnet.Up, math.MaxInt, faultnet.Contains(text))
		limit, cancel := context.WithTimeout(context.Background(), slack)
		defer cancel()
		if err := call(limit); err != nil || limit.Err() != nil {
			t.Errorf("%s: %v, context: %v", text, err, limit.Err())
		}
		select {
		case <-struck:
		case <-time.After(slack):
			t.Errorf("no connection was silent for %s", text)
		}
	}
	silent("note_2", func(ctx context.Context) error {
		_, err := c.Mutex("beside").Lock(ctx)
		return err
	})
	other := client(t, sqlkit.With(sqlkit.MariaDBStore(t, backends.SharedMariaDB(t)), "strategy=getlock"))
	testkit.Lock(t, other, "beside-taken")
	silent("IS_USED_LOCK", func(ctx context.Context) error {
		l, err := c.Mutex("beside-taken").TryLock(ctx)
		if !errors.Is(err, hasp.ErrBusy) {
			return fmt.Errorf("%v, %w", l, err)
		}
		return nil
	})
}
