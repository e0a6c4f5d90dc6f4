package mysqllock

import (
	"context"
	"database/sql"
	"errors"
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
	// Two calls listen, and both are answered, with 2274 bytes each: neither answer arrives as a
	// whole, though one has all of these, and some rows arrive, though both have half of them.
	const some = 1500
	before := p.Stats().Down.Delivered
	p.Set(faultnet.Down, faultnet.Rule{Slice: 16, Most: some})
	p.Set(faultnet.Up, faultnet.Rule{})
	if err := p.WaitFor(ctx, func(s faultnet.Stats) bool {
		return s.Down.Delivered-before >= some && s.Down.Waiting() > 0
	}); err != nil {
		t.Fatalf("no part of an answer waits, and this has tested nothing: %v", err)
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

// holderBehindProxy begins two sessions of one store, the first of which has a bad network.
func holderBehindProxy(ctx context.Context, t *testing.T, params string) (p *faultnet.Proxy, holder, waiter *session) {
	p = testkit.Proxy(t, backends.SharedMariaDB(t).Addr)
	return p, begin(ctx, t, openHere(t, p.Addr(), params)), begin(ctx, t, openHere(t, "", params))
}

// told demands that a ticket that waits is told of its grant.
func told(ctx context.Context, t *testing.T, k *ticket) {
	t.Helper()
	short, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if v, err := k.Wait(short); err != nil || !v.Held {
		t.Errorf("%s: %+v, %v; want it to be told", k.Request.ID, v, err)
	}
}

// Where the connection of the wake-up locks has something else to do, the client wakes by a
// statement: it is lost, and the connection with it. The waiter is told all the same, since the
// server frees what the connection had.
func TestRingLost(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	p, holder, waiter := holderBehindProxy(ctx, t, "prefix=ringlost_")
	first, next := mutex(holder, "a", "first"), mutex(waiter, "a", "next")
	enter(ctx, t, first, true)
	enter(ctx, t, next, false)
	cut := p.Lose(faultnet.Up, 1, faultnet.Contains("RELEASE_LOCK"))
	holder.renewal.turn <- struct{}{}
	err := first.Leave(ctx)
	<-holder.renewal.turn
	if err != nil {
		t.Fatal(err)
	}
	told(ctx, t, next)
	select {
	case <-cut:
	case <-time.After(patience):
		t.Error("no wake was lost: this has tested nothing")
	}
}

// The call that leaves and wakes is lost, or its answer is: the release is confirmed when asked
// again, by another connection, and the waiter is told.
func TestLeavingRingLost(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	p, holder, waiter := holderBehindProxy(ctx, t, "prefix=leavelost_")
	for _, dir := range []faultnet.Direction{faultnet.Up, faultnet.Down} {
		first, next := mutex(holder, "a", fmt.Sprint("first-", dir)), mutex(waiter, "a", fmt.Sprint("next-", dir))
		enter(ctx, t, first, true)
		enter(ctx, t, next, false)
		if _, err := holder.KeepAlive(ctx); err != nil { // which has the wake-up locks anew after the first round
			t.Fatal(err)
		}
		on := holder.wakeups.on
		cut := p.Lose(dir, 1, faultnet.Contains("leave_1"))
		if err := first.Leave(ctx); err == nil || errors.Is(err, driver.ErrGone) {
			t.Errorf("%s lost: %v", dir, err)
		}
		<-cut
		if holder.renewal.conn != nil || on == nil {
			t.Errorf("%s: another connection was cut", dir)
		}
		if err := first.Leave(ctx); err != nil && !errors.Is(err, driver.ErrGone) { // which the core takes for the first one's success
			t.Errorf("%s lost, asked again: %v", dir, err)
		}
		told(ctx, t, next)
		if err := next.Leave(ctx); err != nil {
			t.Error(err)
		}
	}
}

// A departure wakes by the call that makes it: its client sends no statement for that.
func TestLeaveRings(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	b := openHere(t, "", "prefix=rings_")
	holder, waiter := begin(ctx, t, b), begin(ctx, t, b)
	first, next := mutex(holder, "a", "first"), mutex(waiter, "a", "next")
	enter(ctx, t, first, true)
	enter(ctx, t, next, false)
	if err := first.Leave(ctx); err != nil {
		t.Fatal(err)
	}
	if low, high := holder.wakeups.low, holder.wakeups.high; low != 1 || high != wakeupsAhead {
		t.Errorf("the client has the wakeups from %d to %d; want 1 to %d, and none taken since", low, high, wakeupsAhead)
	}
	var ours uint64
	if err := holder.renewal.do(ctx, func(c *sql.Conn) error { return row(ctx, c, "SELECT CONNECTION_ID()", &ours) }); err != nil {
		t.Fatal(err)
	}
	var by sql.Null[uint64] // also the waiter's connection has it for a moment, when it hears it
	if err := row(ctx, holder.table.work, statement("SELECT IS_USED_LOCK(?)", expression(holder.wakeups.name(0))), &by); err != nil {
		t.Fatal(err)
	}
	if by.V == ours {
		t.Error("the wakeup has not woken")
	}
	if v, err := next.Wait(ctx); err != nil || !v.Held {
		t.Errorf("%+v, %v; want it to be told", v, err)
	}
}

// The wake-up lock that a waiter is told when it enters is released by the departure that comes
// next: a call that is late for it returns at once. The control waits for the wake-up lock that
// comes after, which nothing releases. An entry that is found, by a request whose answer was lost,
// is told none: the last of the queue may be behind it.
func TestWakeupOfEntry(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	b := openHere(t, "", "prefix=entrybell_").(*table)
	holder, waiter := begin(ctx, t, b), begin(ctx, t, b)
	first := mutex(holder, "a", "first")
	enter(ctx, t, first, true)
	r := mutex(waiter, "a", "next").Request
	a, err := b.enter(ctx, waiter.id, modeWait, r)
	if err != nil || a.said != 0 || a.held {
		t.Fatalf("%+v, %v", a, err)
	}
	if want := fmt.Sprintf("hasp:wakeup:%s:0", holder.id); a.wakeup != want || a.ahead != 1 {
		t.Errorf("the wakeup %q, %d ahead; want %q, 1", a.wakeup, a.ahead, want)
	}
	if again, err := b.enter(ctx, waiter.id, modeWait, r); err != nil || again.seq != a.seq || again.wakeup != "" {
		t.Errorf("asked again: %+v, %v", again, err)
	}
	if err := first.Leave(ctx); err != nil {
		t.Fatal(err)
	}
	listen := func(wakeup string, limit time.Duration) (grants uint64, took time.Duration) {
		began := time.Now()
		text := b.named("CALL {p}listen_1(?, 0, -1, 0, ?, 1, ?, ?)", waiter.id, limit.Microseconds(), wakeup, limit.Microseconds())
		if err := row(ctx, b.work, text, &grants, new(any), new(any), new(any), new(any), new(any)); err != nil {
			t.Fatal(err)
		}
		return grants, time.Since(began)
	}
	if grants, took := listen(a.wakeup, patience); grants != 1 || took >= patience {
		t.Errorf("%d grants told after %s", grants, took)
	}
	if grants, took := listen(fmt.Sprintf("hasp:wakeup:%s:1", holder.id), time.Second); grants != 1 || took < time.Second {
		t.Errorf("the control: %d grants told after %s: this has tested nothing", grants, took)
	}
}
