package mysqllock_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
)

// gate is closed until it is opened, at the test's end at the latest.
func gate(t *testing.T) (closed <-chan struct{}, open func()) {
	c := make(chan struct{})
	open = sync.OnceFunc(func() { close(c) })
	context.AfterFunc(t.Context(), open)
	return c, open
}

// A grant overtakes the answer "wait": the listening, on another connection, hears of it
// before the client knows that it waits. L2: it holds at once, and does not wait until it would
// have asked by itself.
func TestGrantOvertakesAnswer(t *testing.T) {
	t.Parallel()
	storeURL, db := prefixed(t, "overtaken_")
	holder := queuer(t, storeURL)
	addr := backends.SharedMariaDB(t).Addr
	closed, open := gate(t)
	var asked atomic.Bool
	waiter := wired(t, "overtaken_", func() (net.Conn, error) {
		c, err := net.Dial("tcp", addr)
		return &slowWire{Conn: c, text: fmt.Sprintf("%x", "comes-late"), asked: &asked, open: closed}, err
	})
	first, second := enqueue(t, holder, "first", true), enqueue(t, holder, "second", true)
	listens := enqueue(t, waiter, "second", false) // the listening is under way
	late := waiter.Ticket(request("first", "comes-late"))
	answered := make(chan driver.Verdict, 1)
	go func() {
		v, err := late.Enqueue(ctx(t))
		if err != nil {
			t.Error(err)
		}
		answered <- v
	}()
	testkit.Eventually(t, "it waits", func() bool { return number(t, db, "SELECT COUNT(*) FROM overtaken_entries WHERE name = 'first'") == 2 })
	if !asked.Load() {
		t.Fatal("its answer was not held: this has tested nothing")
	}
	// Of two grants the second is told with the first, or after it.
	for _, k := range []driver.Ticket{first, second} {
		if err := k.Leave(ctx(t)); err != nil {
			t.Fatal(err)
		}
	}
	heard(t, listens)
	if len(answered) > 0 {
		t.Fatal("the answer has come: this has tested nothing")
	}
	open()
	if v := testkit.Await(t, "the answer", answered); !v.Held {
		heard(t, late)
	}
}

// The answer that tells of many grants is cut off in its middle. Those that were not told are
// told by the next one, and not when they ask by themselves.
func TestGrantsCutShort(t *testing.T) {
	t.Parallel()
	storeURL, _ := prefixed(t, "cutshort_")
	holder := queuer(t, storeURL)
	addr := backends.SharedMariaDB(t).Addr
	closed, open := gate(t)
	var cuts atomic.Int64
	waiter := wired(t, "cutshort_", func() (net.Conn, error) {
		c, err := net.Dial("tcp", addr)
		return &cutWire{Conn: c, text: "listen_2", open: closed, cuts: &cuts}, err
	})
	var holds, waits [40]driver.Ticket
	for i := range holds {
		holds[i] = enqueue(t, holder, fmt.Sprint("name-", i), true)
	}
	for i := range waits {
		waits[i] = enqueue(t, waiter, fmt.Sprint("name-", i), false)
	}
	for _, k := range holds {
		if err := k.Leave(ctx(t)); err != nil {
			t.Fatal(err)
		}
	}
	// All grants are told by one answer, of 2274 bytes. Two calls listen, and neither answer arrives
	// as a whole, but some rows of each.
	open()
	for _, k := range waits {
		heard(t, k)
	}
	if cuts.Load() == 0 {
		t.Error("no answer was cut off: this has tested nothing")
	}
}

// Where the connection of the wake-up locks has something else to do, here a renewal that is not
// answered yet, the client wakes by a statement: it is lost, and the connection with it. The waiter
// is told all the same, since the server frees what the connection had.
func TestRingLost(t *testing.T) {
	t.Parallel()
	storeURL, _ := prefixed(t, "ringlost_")
	addr := backends.SharedMariaDB(t).Addr
	p := testkit.Proxy(t, addr)
	var straight atomic.Bool
	holder := wired(t, "ringlost_", func() (net.Conn, error) {
		if straight.Load() {
			return net.Dial("tcp", addr)
		}
		return net.Dial("tcp", p.Addr())
	})
	straight.Store(true) // all but the renewals
	first := enqueue(t, holder, "a", true)
	next := enqueue(t, queuer(t, storeURL), "a", false)
	p.Set(faultnet.Down, faultnet.Rule{Mode: faultnet.Hold})
	sent := p.Stats().Up.Delivered
	renewed := make(chan error, 1)
	go func() { _, err := holder.KeepAlive(ctx(t)); renewed <- err }()
	if err := p.WaitFor(ctx(t), func(s faultnet.Stats) bool { return s.Up.Delivered > sent }); err != nil {
		t.Fatal(err)
	}
	if err := first.Leave(ctx(t)); err != nil {
		t.Fatal(err)
	}
	cut := p.Lose(faultnet.Up, 1, faultnet.Contains("RELEASE_LOCK"))
	p.Set(faultnet.Down, faultnet.Rule{})
	heard(t, next)
	testkit.Await(t, "the loss of the wake: without it this has tested nothing", cut)
	if err := testkit.Await(t, "the renewal", renewed); err != nil {
		t.Error(err)
	}
}

// wakeupOf is the lock at which is waited for the session that holds the one lock of a prefix, and
// the connection that has it.
func wakeupOf(t *testing.T, db *sql.DB, prefix string) (name string, by int64) {
	t.Helper()
	text := "SELECT CONCAT('hasp:wakeup:', CONVERT(id USING ascii), ':', wakeup) FROM " + prefix + "sessions WHERE id = (SELECT session FROM " + prefix + "entries WHERE granted IS NOT NULL)"
	if err := db.QueryRow(text).Scan(&name); err != nil {
		t.Fatal(err)
	}
	return name, usedBy(t, db, name)
}

// usedBy is the connection that has a lock of GET_LOCK, or 0.
func usedBy(t *testing.T, db *sql.DB, name string) int64 {
	t.Helper()
	return number(t, db, "SELECT COALESCE(IS_USED_LOCK('"+name+"'), 0)")
}

// The call that leaves and wakes is lost, or its answer is: the release is confirmed when asked
// again, by another connection, and the waiter is told.
func TestLeavingRingLost(t *testing.T) {
	t.Parallel()
	storeURL, db := prefixed(t, "leavelost_")
	p, behind := testkit.Behind(t, storeURL)
	holder, waiter := queuer(t, behind), queuer(t, storeURL)
	for _, dir := range []faultnet.Direction{faultnet.Up, faultnet.Down} {
		first, next := enqueue(t, holder, "a", true), enqueue(t, waiter, "a", false)
		if _, err := holder.KeepAlive(ctx(t)); err != nil { // which has the wake-up locks anew after the first round
			t.Fatal(err)
		}
		_, by := wakeupOf(t, db, "leavelost_")
		cut := p.Lose(dir, 1, faultnet.Contains("leave_2"))
		if err := first.Leave(ctx(t)); err == nil || errors.Is(err, driver.ErrGone) {
			t.Errorf("%s lost: %v", dir, err)
		}
		testkit.Await(t, "the cut", cut)
		testkit.Eventually(t, "the end of the connection with the wake-up locks: another was cut", func() bool {
			return by != 0 && number(t, db, fmt.Sprint("SELECT COUNT(*) FROM information_schema.processlist WHERE id = ", by)) == 0
		})
		if err := first.Leave(ctx(t)); err != nil && !errors.Is(err, driver.ErrGone) { // which the core takes for the first one's success
			t.Errorf("%s lost, asked again: %v", dir, err)
		}
		heard(t, next)
		if err := next.Leave(ctx(t)); err != nil {
			t.Error(err)
		}
	}
}

// A departure wakes by the call that makes it: its client sends no statement for that, and has taken
// wake-up locks enough before.
func TestLeaveRings(t *testing.T) {
	t.Parallel()
	storeURL, db := prefixed(t, "rings_")
	p, behind := testkit.Behind(t, storeURL)
	first := enqueue(t, queuer(t, behind), "a", true)
	next := enqueue(t, queuer(t, storeURL), "a", false)
	wakeup, by := wakeupOf(t, db, "rings_")
	var statements atomic.Int64
	p.Lose(faultnet.Up, 1, func(chunk []byte) bool { // nothing: it looks
		if bytes.Contains(chunk, []byte("_LOCK(")) {
			statements.Add(1)
		}
		return false
	})
	if err := first.Leave(ctx(t)); err != nil {
		t.Fatal(err)
	}
	// The waiter's connection has it, too, for a moment, when it hears it.
	if now := usedBy(t, db, wakeup); by == 0 || now == by {
		t.Errorf("connection %d had the wake-up lock, and %d has it", by, now)
	}
	heard(t, next)
	if n := statements.Load(); n != 0 {
		t.Errorf("the client has sent %d statements that wake, or take wake-up locks", n)
	}
}

// The wake-up lock that a waiter is told when it enters is released by the departure that comes
// next: a call that is late for it returns at once. The control waits for the wake-up lock that
// comes after, which nothing releases. An entry that is found, by a request whose answer was lost,
// is told none: the last of the queue may be behind it.
func TestWakeupOfEntry(t *testing.T) {
	t.Parallel()
	storeURL, db := prefixed(t, "entrybell_")
	session := func(text string) (id string) {
		if err := db.QueryRow("SELECT CONVERT(id USING ascii) FROM entrybell_sessions " + text).Scan(&id); err != nil {
			t.Fatal(err)
		}
		return id
	}
	holder := queuer(t, storeURL)
	holds := session("")
	queuer(t, storeURL)
	waits := session("WHERE id <> '" + holds + "'")
	first := enqueue(t, holder, "a", true)
	const waiting = 0
	enter := func() (said int64, seq uint64, held bool, wakeup sql.NullString, ahead int64) {
		text := fmt.Sprintf("CALL entrybell_enter_2(%d, 'a', 'next', '%s', %d, %d, %d, '{}', '')", waiting, waits, driver.Whole, driver.Whole, time.Now().UnixMicro())
		if err := db.QueryRow(text).Scan(&said, &seq, &held, new(any), new(any), new(any), new(any), &wakeup, &ahead); err != nil {
			t.Fatal(err)
		}
		return said, seq, held, wakeup, ahead
	}
	said, seq, held, wakeup, ahead := enter()
	if want := "hasp:wakeup:" + holds + ":0"; said != 0 || held || wakeup.String != want || ahead != 1 {
		t.Errorf("%d, held %t, the wakeup %q, %d ahead; want %q, 1", said, held, wakeup.String, ahead, want)
	}
	if _, again, _, wakeup, _ := enter(); again != seq || wakeup.Valid {
		t.Errorf("asked again: number %d after %d, wakeup %+v", again, seq, wakeup)
	}
	if err := first.Leave(ctx(t)); err != nil {
		t.Fatal(err)
	}
	listen := func(wakeup string, limit time.Duration) (grants uint64, took time.Duration) {
		began := time.Now()
		text := fmt.Sprintf("CALL entrybell_listen_2('%s', 0, -1, 0, %d, 1, '%s', %d)", waits, limit.Microseconds(), wakeup, limit.Microseconds())
		if err := db.QueryRow(text).Scan(&grants, new(any), new(any), new(any), new(any), new(any)); err != nil {
			t.Fatal(err)
		}
		return grants, time.Since(began)
	}
	if grants, took := listen(wakeup.String, slack); grants != 1 || took >= slack {
		t.Errorf("%d grants told after %s", grants, took)
	}
	if grants, took := listen("hasp:wakeup:"+holds+":1", time.Second); grants != 1 || took < time.Second {
		t.Errorf("the control: %d grants told after %s: this has tested nothing", grants, took)
	}
}
