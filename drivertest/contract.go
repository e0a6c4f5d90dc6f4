package drivertest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hasplock/hasp/driver"
)

// contractTests talk to the driver itself, without the core.
var contractTests = []test{
	{name: "SeqGrows", needs: both(needsFIFO, needsFencing), run: testSeqGrows},
	{name: "SameIDTwice", run: testSameIDTwice},
	{name: "NoWaitLeavesNothing", run: testNoWait},
	{name: "LeaveTwice", run: testLeaveTwice},
	{name: "LateEnqueue", run: testLateEnqueue},
	{name: "ChangeBeforeWait", run: testChangeBeforeWait},
	{name: "ChangeDuringWait", run: testChangeDuringWait},
	{name: "WaitEndsWithContext", run: testWaitEndsWithContext},
	{name: "WaitAgain", run: testWaitAgain},
	{name: "WaitUnanswered", run: testWaitUnanswered},
	{name: "EndedContext", run: testEndedContext},
	{name: "ListFields", needs: needsFIFO, run: testListFields},
	{name: "Mismatch", needs: needsCounting, run: testMismatch},
	{name: "SessionClose", run: testSessionClose},
	{name: "WaiterOfClosedSession", run: testWaiterOfClosedSession},
	{name: "MiddleLeaves", needs: needsFIFO, run: testMiddleLeaves},
	{name: "Granted", run: testGranted},
	{name: "ExpiredSession", needs: needsLeases, run: testExpiredSession},
	{name: "Publish", needs: needsValues, run: testPublish},
	{name: "Watch", needs: needsWatch, run: testWatch},
	{name: "WatchOrder", needs: needsWatch, run: testWatchOrder},
}

// enter enqueues a request that must be accepted.
func (e *env) enter(s driver.Session, r driver.Request) (driver.Ticket, driver.Verdict) {
	e.Helper()
	t := s.Ticket(r)
	v, err := e.ask(t)
	if err != nil {
		e.Fatalf("enqueue: %v", err)
	}
	if v.Held && e.traits.Fencing == (v.Token == 0) {
		e.Fatalf("token %d, with Fencing %t", v.Token, e.traits.Fencing)
	}
	return t, v
}

// ask enqueues, or asks again how far the entry is.
func (e *env) ask(t driver.Ticket) (driver.Verdict, error) {
	v, err := t.Enqueue(e.ctx())
	e.slowIfUnknown(err)
	return v, err
}

// renew asks for a renewal.
func (e *env) renew(s driver.Session) (time.Duration, error) {
	granted, err := s.KeepAlive(e.ctx())
	e.slowIfUnknown(err)
	return granted, err
}

// holds waits until the ticket holds, as the core does: it listens, and asks again when
// the store wants to be asked.
func (e *env) holds(t driver.Ticket, v driver.Verdict) driver.Verdict {
	e.Helper()
	for all := e.ctx(); !v.Held; {
		ctx, cancel := all, context.CancelFunc(func() {})
		if v.Retry > 0 {
			ctx, cancel = context.WithTimeout(all, v.Retry)
		}
		next, err := t.Wait(ctx)
		cancel()
		if err != nil && ctx.Err() != nil && all.Err() == nil {
			next, err = t.Enqueue(all)
		}
		if all.Err() != nil {
			e.Fatalf("never granted, after all wake-ups: %v; the last answer of the store was %s", context.Cause(all), show(v))
		}
		e.slowIfUnknown(err)
		if err != nil {
			e.Fatalf("waiting for a grant: %v; the answer before was %s", err, show(v))
		}
		v = next
	}
	return v
}

// leave removes an entry that must be there.
func (e *env) leave(t driver.Ticket) {
	e.Helper()
	err := t.Leave(e.ctx())
	e.slowIfUnknown(err)
	if err != nil {
		e.Fatalf("leave: %v", err)
	}
}

// Invariant 1, S2: Seq grows by name, also after the queue was empty, and is the token.
func testSeqGrows(e *env) {
	b, name := e.backend(), e.name()
	s, other := e.session(b, nil), e.session(e.backend(), nil)
	last := uint64(0)
	for range 5 {
		r := e.whole(name)
		held, v := e.enter(s, r)
		waiting, _ := e.enter(other, e.whole(name))
		list := e.list(b, name)
		if len(list) != 2 {
			e.Fatalf("two have entered, and listed are %s", describe(list))
		}
		if first := e.first(b, name, 1); len(first) != 1 || first[0].Seq != list[0].Seq {
			e.Fatalf("the first of %+v is %+v", list, first)
		}
		for i, entry := range list {
			if entry.Seq <= last {
				e.Fatalf("entry %d has Seq %d after %d", i, entry.Seq, last)
			}
			last = entry.Seq
			if i == 0 && v.Token != entry.Seq {
				e.Fatalf("token %d of %s, and listed are %+v", v.Token, r.ID, list)
			}
		}
		e.leave(held)
		if v := e.holds(waiting, driver.Verdict{}); v.Token != last {
			e.Fatalf("token %d of the entry with Seq %d", v.Token, last)
		}
		e.leave(waiting)
	}
}

// S8: after a lost answer the request is repeated, and there is one entry, with its first token.
func testSameIDTwice(e *env) {
	b, name := e.backend(), e.name()
	s := e.session(b, nil)
	t, first := e.enter(s, e.whole(name))
	w, _ := e.enter(s, e.whole(name))
	for range 3 {
		if v, err := e.ask(t); err != nil || v.Held != first.Held || v.Token != first.Token {
			e.Fatalf("the holder asked again: %+v, %v; at first %+v", v, err, first)
		}
		if v, err := e.ask(w); err != nil || v.Held {
			e.Fatalf("the waiter asked again: %+v, %v", v, err)
		}
	}
	if !first.Held {
		e.Fatal("alone in the queue, and not held")
	}
	if n := len(e.list(b, name)); e.traits.FIFO && n != 2 {
		e.Fatalf("two IDs made %d entries", n)
	}
	e.leave(t)
	e.holds(w, driver.Verdict{})
	e.leave(w)
	e.empty(b, name)
}

// L4: a try that is refused leaves nothing, not even for a moment in which a waiter could see it.
func testNoWait(e *env) {
	b, name := e.backend(), e.name()
	held, _ := e.enter(e.session(b, nil), e.whole(name))
	r := e.whole(name)
	r.NoWait = true
	try, v := e.enter(e.session(e.backend(), nil), r)
	if v.Held {
		e.Fatal("a taken lock was granted to a try")
	}
	if entries := e.list(b, name); len(entries) != 1 {
		e.Fatalf("the refused try left an entry: %+v", entries)
	}
	e.wantErr("leave after a refused try", try.Leave(e.ctx()), driver.ErrGone)
	e.leave(held)
	if try, v := e.enter(e.session(e.backend(), nil), r); !v.Held {
		e.Fatal("a free lock was refused to a try")
	} else {
		e.leave(try)
	}
}

// S6, S7: leaving is confirmed once; for an entry that was never there the store says so.
func testLeaveTwice(e *env) {
	b, name := e.backend(), e.name()
	s := e.session(b, nil)
	e.wantErr("leave of what was never entered", s.Ticket(e.whole(name)).Leave(e.ctx()), driver.ErrGone)
	t, _ := e.enter(s, e.whole(name))
	e.leave(t)
	next, v := e.enter(s, e.whole(name))
	e.wantErr("the second leave", t.Leave(e.ctx()), driver.ErrGone)
	if v, err := e.ask(next); err != nil || !v.Held {
		e.Fatalf("the second leave touched the next entry: %+v, %v", v, err)
	}
	if !v.Held {
		e.Fatal("alone in the queue, and not held")
	}
	e.leave(next)
}

// L4: a request that arrives after its ticket left must not make an entry that lasts,
// although its session lives on.
func testLateEnqueue(e *env) {
	b, name := e.backend(), e.name()
	s := e.session(b, nil)
	t := s.Ticket(e.whole(name))
	e.wantErr("leave first", t.Leave(e.ctx()), driver.ErrGone)
	if v, err := t.Enqueue(e.ctx()); err == nil && v.Held {
		e.Logf("a late enqueue made an entry, which is allowed if it goes: %+v", v)
	}
	e.eventually("the late entry gone", func() bool {
		if _, err := e.renew(s); err != nil {
			e.Fatalf("keepalive: %v", err)
		}
		return len(e.list(b, name)) == 0
	})
}

// L3, L4: a method whose context has ended does nothing and returns the reason.
func testEndedContext(e *env) {
	b, name := e.backend(), e.name()
	s := e.session(b, nil)
	ended, cancel := context.WithCancel(e.ctx())
	cancel()
	t := s.Ticket(e.whole(name))
	_, err := t.Enqueue(ended)
	e.wantErr("Enqueue", err, context.Canceled)
	_, err = s.KeepAlive(ended)
	if e.traits.Liveness == driver.Leased { // others may not need to ask the store
		e.wantErr("KeepAlive", err, context.Canceled)
	}
	_, err = b.List(ended, name, 0)
	e.wantErr("List", err, context.Canceled)
	if s, _, err := b.Open(ended, driver.SessionOptions{TTL: e.h.TTL, Gone: func(string, error) {}}); err == nil {
		_ = s.Close(e.ctx()) // the next line fails the test
		e.Error("Open succeeded with an ended context")
	}
	if err := t.Leave(e.ctx()); err != nil && !errors.Is(err, driver.ErrGone) {
		e.Errorf("Leave after an Enqueue of unknown outcome: %v", err)
	}
	e.empty(b, name)
	held, _ := e.enter(s, e.whole(name))
	e.wantErr("Leave", held.Leave(ended), context.Canceled)
	if err := held.Leave(e.ctx()); err != nil && !errors.Is(err, driver.ErrGone) {
		e.Errorf("Leave after a Leave of unknown outcome: %v", err)
	}
	e.empty(b, name)
}

// Invariants 2 and 3: the queue is listed oldest first, with everything that its owners wrote.
func testListFields(e *env) {
	b, name := e.backend(), e.name()
	if got := e.list(b, name); len(got) != 0 {
		e.Fatalf("an unused name has entries: %+v", got)
	}
	sessions := []driver.Session{e.session(b, nil), e.session(e.backend(), nil)}
	var want []driver.Request
	for i := range 4 {
		r := e.whole(name)
		r.Owner = `{"program":"owner ` + string(rune('a'+i)) + ` \u00e9 ü"}`
		r.Value = []byte{0, 1, 0xff, byte(i), '"', '\\', '\n'}
		e.enter(sessions[i%2], r)
		want = append(want, r)
	}
	got := e.list(e.backend(), name)
	if len(got) != len(want) {
		e.Fatalf("%d entries listed, want %d", len(got), len(want))
	}
	for i, g := range got {
		w := want[i]
		if g.Name != w.Name || g.ID != w.ID || g.Units != w.Units || g.Capacity != w.Capacity || g.Owner != w.Owner {
			e.Errorf("entry %d: listed %+v, want %+v", i, g.Request, w)
		}
		if d := g.Since.Sub(w.Since); d < -time.Millisecond || d > time.Millisecond {
			e.Errorf("entry %d: since %s, want %s", i, g.Since, w.Since)
		}
		if e.traits.Values && !slices.Equal(g.Value, w.Value) {
			e.Errorf("entry %d: value %q, want %q", i, g.Value, w.Value)
		}
		if same := g.Session == got[i%2].Session; !same || g.Session != "" && g.Session == got[1-i%2].Session {
			e.Errorf("entry %d: session %q; the first two have %q and %q", i, g.Session, got[0].Session, got[1].Session)
		}
		if i > 0 && g.Seq <= got[i-1].Seq {
			e.Errorf("entry %d: Seq %d after %d", i, g.Seq, got[i-1].Seq)
		}
	}
}

// A name has one capacity at a time; another is refused and changes nothing.
func testMismatch(e *env) {
	b, name := e.backend(), e.name()
	s := e.session(b, nil)
	held, _ := e.enter(s, e.request(name, 1, 3))
	for _, noWait := range []bool{false, true} {
		r := e.request(name, 1, 5)
		r.NoWait = noWait
		_, err := s.Ticket(r).Enqueue(e.ctx())
		e.wantErr("another capacity", err, driver.ErrMismatch)
		var m *driver.MismatchError
		if !errors.As(err, &m) || m.Found != 3 || m.Want != 5 || m.Name != name {
			e.Errorf("error %#v does not say that 3 was found and 5 wanted", err)
		}
	}
	if n := len(e.list(b, name)); n != 1 {
		e.Errorf("%d entries after the refusals, want 1", n)
	}
	e.leave(held)
	next, v := e.enter(s, e.request(name, 5, 5))
	if !v.Held {
		e.Error("an empty name still has the old capacity")
	}
	e.leave(next)
}
