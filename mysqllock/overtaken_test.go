package mysqllock

import (
	"context"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
)

// patience is how long is waited for what must come.
const patience = 30 * time.Second

// openHere opens a store of the shared server's in this package, where one can look inside.
func openHere(t *testing.T, addr, params string) driver.Backend {
	t.Helper()
	m := backends.SharedMariaDB(t)
	u, err := url.Parse(m.URL() + "?" + params)
	if err != nil {
		t.Fatal(err)
	}
	if addr != "" {
		u.Host = addr
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	b, err := openURL(ctx, u)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// begin opens a session whose waiters ask by themselves once in an hour, which is never.
func begin(ctx context.Context, t *testing.T, b driver.Backend) *session {
	t.Helper()
	s, _, err := b.Open(ctx, driver.SessionOptions{TTL: time.Hour, Gone: func(string, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s.(*session)
}

func mutex(s *session, name, id string) *ticket {
	return s.Ticket(driver.Request{Name: name, ID: id, Units: driver.Whole, Capacity: driver.Whole, Owner: "{}", Since: time.Now()}).(*ticket)
}

// enter demands that the ticket holds at once, or that it waits.
func enter(ctx context.Context, t *testing.T, k *ticket, held bool) {
	t.Helper()
	if v, err := k.Enqueue(ctx); err != nil || v.Held != held {
		t.Fatalf("%s: %+v, %v; want held %t", k.Request.ID, v, err, held)
	}
}

// A grant overtakes the answer "wait": the listening, on another connection, hears of it
// before the client knows that it waits. L2: it holds at once, and does not wait until it would
// have asked by itself.
func TestGrantOvertakesAnswer(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	m := backends.SharedMariaDB(t)
	p := testkit.Proxy(t, m.Addr)
	direct := openHere(t, "", "prefix=overtaken_").(*table)
	slow := openHere(t, p.Addr(), "prefix=overtaken_").(*table)
	slow.kept = direct.kept // the listening does not share the slow network
	holder, waiter := begin(ctx, t, direct), begin(ctx, t, slow)

	first, second := mutex(holder, "first", "holds-first"), mutex(holder, "second", "holds-second")
	enter(ctx, t, first, true)
	enter(ctx, t, second, true)
	listens, late := mutex(waiter, "second", "listens"), mutex(waiter, "first", "late")
	enter(ctx, t, listens, false) // the listening is under way

	waiter.rows.note(late, false) // so that it does not try the row first, and wait for that answer
	p.Set(faultnet.Down, faultnet.Rule{Mode: faultnet.Hold})
	answered := make(chan driver.Verdict, 1)
	go func() {
		v, err := late.Enqueue(ctx)
		if err != nil {
			t.Error(err)
		}
		answered <- v
	}()
	for n := 0; n < 2; time.Sleep(10 * time.Millisecond) {
		if err := row(ctx, direct.work, "SELECT COUNT(*) FROM overtaken_entries WHERE name = x'"+fmt.Sprintf("%x", "first")+"'", &n); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.Leave(ctx); err != nil {
		t.Fatal(err)
	}
	// Of two grants the second is told with the first, or after it.
	if err := second.Leave(ctx); err != nil {
		t.Fatal(err)
	}
	if v, err := listens.Wait(ctx); err != nil || !v.Held {
		t.Fatalf("the listening: %+v, %v", v, err)
	}
	p.Heal()
	var err error
	v := <-answered
	if !v.Held {
		short, cancel := context.WithTimeout(ctx, patience/3)
		defer cancel()
		v, err = late.Wait(short)
	}
	if err != nil || !v.Held {
		t.Errorf("granted before its answer arrived: %+v, %v", v, err)
	}
}

// The answer that tells of many grants is cut off in its middle. Those that were not told are
// told by the next one, and not when they ask by themselves.
func TestGrantsCutShort(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	m := backends.SharedMariaDB(t)
	p := testkit.Proxy(t, m.Addr)
	direct := openHere(t, "", "prefix=cutshort_").(*table)
	slow := openHere(t, p.Addr(), "prefix=cutshort_").(*table)
	slow.work = direct.work // only the listening has the bad network
	holder, waiter := begin(ctx, t, direct), begin(ctx, t, slow)
	const n = 40
	var holds, waits [n]*ticket
	for i := range n {
		name := fmt.Sprint("name-", i)
		holds[i], waits[i] = mutex(holder, name, "holds-"+name), mutex(waiter, name, "waits-"+name)
		enter(ctx, t, holds[i], true)
	}
	p.Partition() // so that all grants are told by one answer
	for i := range n {
		enter(ctx, t, waits[i], false)
	}
	for i := range n {
		if err := holds[i].Leave(ctx); err != nil {
			t.Fatal(err)
		}
	}
	p.Set(faultnet.Down, faultnet.Rule{Slice: 16})
	p.Set(faultnet.Up, faultnet.Rule{})
	const answer, rest = 1500, 800 // more than a handshake, and less than the rows
	if err := p.WaitFor(ctx, func(s faultnet.Stats) bool {
		return s.Down.Received >= answer && s.Down.Received-s.Down.Delivered <= rest
	}); err != nil {
		t.Fatal(err)
	}
	if p.Stats().Down.Waiting() == 0 {
		t.Error("the answer had arrived as a whole: this has tested nothing")
	}
	p.Cut()
	p.Heal()
	short, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, k := range waits {
		if v, err := k.Wait(short); err != nil || !v.Held {
			t.Errorf("%s: %+v, %v", k.Request.ID, v, err)
		}
	}
}
