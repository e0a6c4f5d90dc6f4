package drivertest

import (
	"errors"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// What a holder may do besides releasing: take the lock again, downgrade, hold for a time, hand
// over within its process.
var holdingTests = []test{
	{name: "Reentrant", run: testReentrant},
	{name: "Downgrade", needs: both(needsShared, needsDowngrader), run: testDowngrade},
	{name: "DowngradeBehind", needs: both(both(needsShared, needsFIFO), needsDowngrader), run: testDowngradeBehind},
	{name: "DowngradeTold", needs: both(needsShared, needsDowngrader), run: testDowngradeTold},
	{name: "DowngradeKeeps", needs: both(needsShared, needsDowngrader), run: testDowngradeKeeps},
	{name: "Waiter", run: testWaiterVerbs},
	{name: "MinHold", run: testMinHold},
	{name: "MaxHold", run: testOverstay(hasp.MaxHold(200*time.Millisecond), hasp.ReasonOverdue)},
	{name: "StallAfter", run: testOverstay(hasp.StallAfter(200*time.Millisecond), hasp.ReasonStalled)},
}

func needsDowngrader(e *env) string {
	b := e.backend()
	s := e.session(b, func(string, error) {})
	_, ok := s.Ticket(e.whole(e.name())).(driver.Downgrader)
	return unless(ok, "to make an entry smaller")
}

// S10: an owner that takes the lock again has it until it has released it as often.
func testReentrant(e *env) {
	b, name, c, other := e.backend(), e.name(), e.client(), e.client()
	outer := e.must(c.Mutex(name).Lock(e.ctx()))
	inner := e.must(c.Mutex(name, hasp.Reentrant()).Lock(outer.Context()))
	if inner.Token() != outer.Token() || len(e.list(b, name)) != 1 {
		e.Errorf("tokens %d and %d, %d entries", outer.Token(), inner.Token(), len(e.list(b, name)))
	}
	e.release(outer)
	_, err := other.Mutex(name).TryLock(e.ctx())
	e.wantErr("try before the last release", err, hasp.ErrBusy)
	if !inner.Held() {
		e.Errorf("the inner lease went with the outer: %v", inner.Err())
	}
	e.release(inner)
	e.release(e.must(other.Mutex(name).Lock(e.ctx())))
}

// The writer becomes a reader, with its place, its token and no gap; readers come in.
func testDowngrade(e *env) {
	b, name, c, other := e.backend(), e.name(), e.client(), e.client()
	l := e.must(c.RWMutex(name).Lock(e.ctx()))
	token := l.Token()
	reader := other.queue(other.RWMutex(name).RLock)
	for range 2 { // the second is harmless
		if err := e.once(l.Downgrade(e.ctx())); err != nil {
			e.Fatalf("downgrade: %v", err)
		}
	}
	e.release(reader.lease())
	_, err := other.RWMutex(name).TryLock(e.ctx())
	e.wantErr("a writer beside the downgraded", err, hasp.ErrBusy)
	if list := e.list(b, name); len(list) != 1 || list[0].Units != 1 || e.traits.Fencing && list[0].Seq != token {
		e.Errorf("listed: %+v", list)
	}
	if !l.Held() || l.Token() != token {
		e.Errorf("held %t, token %d was %d", l.Held(), l.Token(), token)
	}
	e.release(l)
	e.release(e.must(other.RWMutex(name).Lock(e.ctx())))
}

// A waiting writer stays next: it does not get in beside the reader, and no client passes it.
func testDowngradeBehind(e *env) {
	name, c, other, third := e.name(), e.client(), e.client(), e.client()
	l := e.must(c.RWMutex(name).Lock(e.ctx()))
	writer := other.queue(other.RWMutex(name).Lock)
	if err := e.once(l.Downgrade(e.ctx())); err != nil {
		e.Fatalf("downgrade: %v", err)
	}
	writer.blocked("a reader holds")
	_, err := third.RWMutex(name).TryRLock(e.ctx())
	e.wantErr("a reader behind the writer", err, hasp.ErrBusy)
	e.release(l)
	e.release(writer.lease())
}

// L2: a reader that waits behind a writer is told of its downgrade as of a departure. Nothing else
// happens that could wake it; with a store without push it asks at the announced time.
func testDowngradeTold(e *env) {
	name := e.name()
	t, v := e.enter(e.session(e.backend(), nil), e.whole(name))
	e.holds(t, v)
	reader, v := e.enter(e.session(e.backend(), nil), e.request(name, 1, driver.Whole))
	if v.Held {
		e.Fatal("a reader holds beside a writer")
	}
	e.settle()
	began := time.Now()
	if err := e.once(t.(driver.Downgrader).Downgrade(e.ctx(), 1)); err != nil {
		e.Fatalf("downgrade: %v", err)
	}
	e.holds(reader, v)
	if took := time.Since(began); took > e.limit(time.Second) {
		e.Errorf("the reader was told of the downgrade after %s", took)
	}
	e.leave(reader)
	e.leave(t)
}

// A downgrade and a publication do not undo each other, and nothing makes an entry larger again:
// neither a late downgrade nor a later publication.
func testDowngradeKeeps(e *env) {
	b, name := e.backend(), e.name()
	s := e.session(b, nil)
	r := e.whole(name)
	t, v := e.enter(s, r)
	e.holds(t, v)
	shrink := func(units int64) {
		e.Helper()
		if err := e.once(t.(driver.Downgrader).Downgrade(e.ctx(), units)); err != nil {
			e.Fatalf("downgrade to %d: %v", units, err)
		}
	}
	publish := func(value string) {
		e.Helper()
		if p, ok := t.(driver.Publisher); ok && e.traits.Values {
			r.Value = []byte(value)
			if err := e.once(p.Publish(e.ctx(), r.Value)); err != nil {
				e.Fatalf("publish %q: %v", value, err)
			}
		}
	}
	publish("before")
	shrink(3)
	shrink(7)
	for range 2 {
		list := e.list(b, name)
		if len(list) != 1 || list[0].Units != 3 || list[0].ID != r.ID || string(list[0].Value) != string(r.Value) {
			e.Fatalf("listed: %+v", list)
		}
		publish("after")
	}
	e.leave(t)
	e.wantErr("downgrade of what has left", t.(driver.Downgrader).Downgrade(e.ctx(), 1), driver.ErrGone)
}

// S1: a waiter that sends what only a holder may send holds nothing by it, and its entry stays as
// it was: neither a publication nor a downgrade nor an adoption grants, and none is told as done.
func testWaiterVerbs(e *env) {
	b, name := e.backend(), e.name()
	s := e.session(e.backend(), nil)
	holding, r := e.request(name, 1, driver.Whole), e.whole(name)
	if !e.traits.Shared {
		holding = e.whole(name)
	}
	holder, v := e.enter(e.session(b, nil), holding)
	held := e.holds(holder, v)
	t, v := e.enter(s, r)
	if v.Held {
		e.Fatal("two hold")
	}
	as := func(what string, err error) {
		e.Helper()
		e.wantErr(what+" by a waiter", err, driver.ErrGone)
		if _, err := e.renew(s); err != nil {
			e.Fatalf("renewal after %s by a waiter: %v", what, err)
		}
		list := e.list(b, name)
		if len(list) == 0 || list[0].ID != holding.ID || len(list[0].Value) > 0 || e.traits.FIFO && len(list) != 2 {
			e.Fatalf("after %s by a waiter: %s", what, describe(list))
		}
		if e.traits.FIFO && (list[1].ID != r.ID || list[1].Units != r.Units || len(list[1].Value) > 0) {
			e.Fatalf("after %s a waiter is listed as %+v", what, list[1])
		}
		if v, err := e.ask(t); err != nil || v.Held {
			e.Fatalf("after %s a waiter is told %+v, %v", what, v, err)
		}
	}
	if p, ok := t.(driver.Publisher); ok && e.traits.Values {
		as("a publication", p.Publish(e.ctx(), []byte("the waiter's")))
	}
	if d, ok := t.(driver.Downgrader); ok && e.traits.Shared {
		as("a downgrade", d.Downgrade(e.ctx(), 1))
	}
	if _, ok := t.(driver.Adopter); ok && e.traits.FIFO { // else a waiter has no place
		seq := e.list(b, name)[1].Seq
		as("its own adoption", adopting(e.ctx(), t, r.ID, seq))
		as("adoption of the holder's place", adopting(e.ctx(), t, r.ID, held.Token))
		// The same once more, from a ticket that does not know that it waits, as after a move to
		// another server of hasp serve.
		again := s.Ticket(r)
		if err := adopting(e.ctx(), again, r.ID, seq); err == nil {
			e.violated("a waiter adopts its own entry, and holds")
		}
		_ = again.Leave(e.ctx()) // perhaps it has none
	} else {
		_ = t.Leave(e.ctx()) // where there is no queue it has no entry
	}
	if list := e.list(b, name); len(list) == 0 || list[0].ID != holding.ID || e.traits.Fencing && list[0].Seq != held.Token {
		e.Fatalf("the holder's entry: %s", describe(list))
	}
	e.leave(holder)
	if err := e.once(s.Close(e.ctx())); err != nil {
		e.Errorf("close: %v", err)
	}
	e.empty(b, name)
}

// The lock is kept for its time, even from waiters that push notifies.
func testMinHold(e *env) {
	const least = 300 * time.Millisecond
	name, c, other := e.name(), e.client(), e.client()
	began := time.Now()
	l := e.must(c.Mutex(name, hasp.MinHold(least)).Lock(e.ctx()))
	next := other.queue(other.Mutex(name).Lock)
	e.release(l)
	e.release(next.lease())
	if took := time.Since(began); took < least {
		e.Errorf("the next had the lock after %s", took)
	}
}

// A holder that exceeds its time, or makes no progress, is told, and only then does the next get
// the lock.
func testOverstay(limit hasp.LockOption, reason hasp.Reason) func(*env) {
	return func(e *env) {
		name, c, other := e.name(), e.shortLived(), e.client()
		l := e.must(c.Mutex(name, limit).Lock(e.ctx()))
		work := l.Context()
		next := e.must(other.Mutex(name).Lock(e.ctx())) // even if it came before that time had ended
		if work.Err() == nil || l.Held() {
			e.Error("S5: the next holds, and the old holder was not told")
		}
		var lost *hasp.LostError
		if !errors.As(l.Err(), &lost) || lost.Reason != reason {
			e.Errorf("ended by %v, want %s", l.Err(), reason)
		}
		if e.traits.Fencing && next.Token() <= l.Token() {
			e.violated("token %d after %d", next.Token(), l.Token())
		}
		e.release(next)
	}
}
