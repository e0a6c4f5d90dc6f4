package drivertest

import (
	"context"
	"errors"
	"time"

	"github.com/hasplock/hasp/driver"
)

// L1: closing a session removes its entries, at any position, and no others.
func testSessionClose(e *env) {
	b, name, free := e.backend(), e.name(), e.name()
	dying, other := e.session(b, nil), e.session(e.backend(), nil)
	held, _ := e.enter(dying, e.whole(name))
	e.enter(dying, e.whole(free))
	next, v := e.enter(other, e.whole(name))
	waiting, _ := e.enter(dying, e.whole(name))
	began := time.Now()
	if err := e.once(dying.Close(e.ctx())); err != nil {
		e.Fatalf("close: %v", err)
	}
	e.holds(next, v)
	if took := time.Since(began); took > e.limit(time.Second) {
		e.Errorf("the next was granted only %s after the close", took)
	}
	if got := e.list(b, name); len(got) != 1 {
		e.Errorf("%d entries left, want that of the other session alone: %+v", len(got), got)
	}
	e.empty(b, free)
	for what, t := range map[string]driver.Ticket{"holder": held, "waiter": waiting} {
		if _, err := t.Enqueue(e.ctx()); err == nil {
			e.Errorf("the %s of a closed session could enqueue again", what)
		}
	}
	if _, err := dying.KeepAlive(e.ctx()); err == nil && e.traits.Liveness == driver.Leased {
		e.Error("a closed session was renewed")
	}
	e.leave(next)
}

// A waiter must not outlive its session: it would wait for ever for an entry that no longer exists.
func testWaiterOfClosedSession(e *env) {
	name := e.name()
	e.enter(e.session(e.backend(), nil), e.whole(name))
	s := e.session(e.backend(), nil)
	t, _ := e.enter(s, e.whole(name))
	ended := make(chan error, 1)
	go func() {
		ctx := e.ctx()
		for {
			if _, err := t.Wait(ctx); err != nil {
				ended <- err
				return
			}
		}
	}()
	e.settle()
	began := time.Now()
	if err := e.once(s.Close(e.ctx())); err != nil {
		e.Fatalf("close: %v", err)
	}
	err := e.once(await(e, "the Wait of a closed session", ended))
	if took := time.Since(began); took > e.limit(time.Second) {
		e.Errorf("told only after %s", took)
	}
	if !errors.Is(err, driver.ErrGone) && !errors.Is(err, driver.ErrClosed) {
		e.Errorf("Wait in a closed session: %v", err)
	}
}

// Invariant 3: the set ahead shrinks in any order; the remaining entries keep their places.
func testMiddleLeaves(e *env) {
	b, name := e.backend(), e.name()
	var tickets []driver.Ticket
	for range 5 {
		t, _ := e.enter(e.session(e.backend(), nil), e.whole(name))
		tickets = append(tickets, t)
	}
	before := e.list(b, name)
	e.leave(tickets[2])
	e.leave(tickets[3])
	after := e.list(b, name)
	if len(after) != 3 || after[0].ID != before[0].ID || after[1].ID != before[1].ID || after[2].ID != before[4].ID {
		e.Fatalf("the third and fourth of %v left, and these stay: %v", ids(before), ids(after))
	}
	e.leave(tickets[0])
	e.holds(tickets[1], driver.Verdict{})
	e.leave(tickets[1])
	e.holds(tickets[4], driver.Verdict{})
	e.leave(tickets[4])
}

func ids(entries []driver.Entry) []string {
	var s []string
	for _, e := range entries {
		s = append(s, e.ID)
	}
	return s
}

// Invariant 5: the grants of the store fit its liveness.
func testGranted(e *env) {
	s, granted := e.open(e.backend(), driver.SessionOptions{TTL: e.h.TTL, Gone: func(string, error) {}})
	defer s.Close(e.ctx())
	if forever := granted == driver.Forever; forever != (e.traits.Liveness == driver.ProcessBound) {
		e.Fatalf("a %s store granted %s", e.traits.Liveness, granted)
	}
	if granted == driver.Forever {
		return
	}
	if renewed, err := e.renew(s); err != nil || renewed <= 0 || renewed == driver.Forever {
		e.Errorf("renewed for %s, %v", renewed, err)
	}
}

// Invariant 4, S6: an expired entry is not renewed: the driver reports it, by the session's error
// or by Gone for the entry, and restores nothing.
func testExpiredSession(e *env) {
	name := e.name()
	told := make(chan string, 16)
	b := e.backend()
	s, _ := e.open(b, driver.SessionOptions{TTL: e.h.TTL, Gone: func(id string, _ error) {
		select {
		case told <- id:
		default:
		}
	}})
	defer s.Close(e.ctx())
	old := e.whole(name)
	e.enter(s, old)
	other := e.session(e.backend(), nil)
	next, v := e.enter(other, e.whole(name))
	if e.h.Cut != nil { // some client libraries renew on their own
		heal := e.h.Cut(e, b)
		defer heal()
		e.outlast(other, next, v)
		heal()
	} else {
		e.outlast(other, next, v)
	}
	if _, err := s.KeepAlive(e.ctx()); !errors.Is(err, driver.ErrGone) {
		select {
		case id := <-told:
			if id != "" && id != old.ID {
				e.Errorf("told that %s is gone, and not %s", id, old.ID)
			}
		case <-time.After(e.limit(100 * time.Millisecond)): // another goroutine of the driver may be about to tell
			e.Errorf("renewed what had expired: %v, and nothing was told", err)
		}
	}
	if got := e.list(e.backend(), name); len(got) != 1 || got[0].ID == old.ID {
		e.Errorf("after the renewal the queue has %v, without place for the expired %s", ids(got), old.ID)
	}
	e.leave(next)
}

// outlast waits until the ticket holds, and keeps its session alive meanwhile.
func (e *env) outlast(s driver.Session, t driver.Ticket, v driver.Verdict) {
	e.Helper()
	ctx, cancel := context.WithCancel(e.ctx())
	renewing := make(chan struct{})
	go func() {
		defer close(renewing)
		for ctx.Err() == nil {
			if _, err := s.KeepAlive(ctx); err != nil && ctx.Err() == nil {
				e.slowIfUnknown(err)
				e.Errorf("keepalive: %v", err)
			}
			select {
			case <-time.After(e.h.TTL / 3):
			case <-ctx.Done():
			}
		}
	}()
	defer func() { cancel(); <-renewing }()
	e.holds(t, v)
}

// S6: publishing concerns the own entry, and needs one.
func testPublish(e *env) {
	b, name := e.backend(), e.name()
	s := e.session(b, nil)
	r := e.whole(name)
	r.Value = []byte("first")
	t, _ := e.enter(s, r)
	if err := e.once(t.(driver.Publisher).Publish(e.ctx(), []byte("second"))); err != nil {
		e.Errorf("publish: %v", err)
	}
	if got := e.list(b, name); len(got) != 1 || string(got[0].Value) != "second" {
		e.Errorf("published, and listed %+v", got)
	}
	e.leave(t)
	r = e.whole(name)
	r.Value = []byte("next")
	next, _ := e.enter(s, r)
	e.wantErr("publish after leaving", t.(driver.Publisher).Publish(e.ctx(), []byte("third")), driver.ErrGone)
	if got := e.list(b, name); len(got) != 1 || string(got[0].Value) != "next" {
		e.Errorf("after a late publication the next entry is %+v", got)
	}
	e.leave(next)
}

// L2: a watch reports that it is established, then every change, until its context ends.
func testWatch(e *env) {
	b, name := e.backend(), e.name()
	s := e.session(e.backend(), nil)
	changed, ended := make(chan struct{}, 1), make(chan error, 1)
	ctx, cancel := context.WithCancel(e.ctx())
	defer cancel()
	go func() {
		ended <- b.(driver.Watcher).Watch(ctx, name, func() {
			select {
			case changed <- struct{}{}:
			default: // one that is not taken yet stands for both
			}
		})
	}()
	tells := func(what string) {
		e.Helper()
		select {
		case <-changed:
		case err := <-ended:
			e.Fatalf("%s: the watch broke: %v", what, err)
		case <-time.After(e.prompt()):
			e.Fatalf("%s, and the watch has not told of it in %s", what, e.prompt())
		}
	}
	tells("a new watch")
	t, _ := e.enter(s, e.whole(name))
	tells("an entry came")
	if p, ok := t.(driver.Publisher); ok && e.traits.Values {
		if err := e.once(p.Publish(e.ctx(), []byte("value"))); err != nil {
			e.Errorf("publish: %v", err)
		}
		tells("a value changed")
	}
	e.leave(t)
	tells("an entry left")
	cancel()
	e.wantErr("a watch whose context ended", await(e, "the end of a watch whose context ended", ended), context.Canceled)
}

// L2: what a watch has told last is the last that there was: who looks when it is told sees a
// release that came soon after an entry, and does not keep the entry until something else happens.
func testWatchOrder(e *env) {
	name, c := e.name(), e.client()
	ids := make(chan string, 64) // what is seen: more than the changes below
	onlooker := e.client()
	ctx, cancel := context.WithCancel(e.ctx())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for q, err := range onlooker.Follow(ctx, name) {
			if err != nil {
				continue
			}
			id := ""
			if len(q.Holders) > 0 {
				id = q.Holders[0].ID
			}
			ids <- id
		}
	}()
	defer func() { cancel(); <-ended }()
	sees := func(want string) {
		e.Helper()
		last := "nothing"
		for {
			select {
			case last = <-ids:
				if last == want {
					return
				}
			case <-time.After(e.prompt()):
				e.Fatalf("who follows the name saw last %q, and %q was not told in %s", last, want, e.prompt())
			}
		}
	}
	sees("")
	for range 3 {
		held := e.must(c.Mutex(name).Lock(e.ctx()))
		sees(held.ID())
		e.release(held)
		sees("")
	}
}
