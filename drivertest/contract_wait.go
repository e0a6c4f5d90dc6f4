package drivertest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hasplock/hasp/driver"
)

// L2: a change between the answer of Enqueue and the call of Wait is not missed.
func testChangeBeforeWait(e *env) {
	name := e.name()
	s, other := e.session(e.backend(), nil), e.session(e.backend(), nil)
	for range 10 {
		held, v := e.enter(s, e.whole(name))
		e.holds(held, v) // a store without an order may need a second look at a free lock
		waiting, v := e.enter(other, e.whole(name))
		e.leave(held)
		e.holds(waiting, v)
		e.leave(waiting)
	}
}

// L2: a waiter is told of a release that comes while it waits. One that hears nothing asks when the
// holder's time would be over, which is no wake-up.
func testChangeDuringWait(e *env) {
	name := e.name()
	held, _ := e.enter(e.session(e.backend(), nil), e.whole(name))
	waiting, v := e.enter(e.session(e.backend(), nil), e.whole(name))
	granted := make(chan struct{})
	go func() {
		defer close(granted) // also if it fails
		e.holds(waiting, v)
	}()
	time.Sleep(e.h.TTL / 20) // it listens
	e.leave(held)
	select {
	case <-granted:
	case <-time.After(e.prompt()):
		e.Errorf("the waiter has not been granted the lock in %s since the release", e.prompt())
		<-granted
	}
	e.leave(waiting)
}

// L3: Wait ends with its context, and the ticket still works afterwards.
func testWaitEndsWithContext(e *env) {
	name := e.name()
	held, _ := e.enter(e.session(e.backend(), nil), e.whole(name))
	waiting, v := e.enter(e.session(e.backend(), nil), e.whole(name))
	for range 5 {
		ctx, cancel := context.WithCancel(e.ctx())
		ended := make(chan time.Time, 1)
		time.AfterFunc(5*time.Millisecond, func() { ended <- time.Now(); cancel() })
		var err error
		for err == nil { // early returns are allowed
			v, err = waiting.Wait(ctx)
			if v.Held {
				e.Fatal("granted while another holds")
			}
		}
		if took := time.Since(<-ended); took > e.limit(100*time.Millisecond) {
			e.Errorf("Wait returned %s after its context ended", took)
		}
		e.wantErr("Wait with an ended context", err, context.Canceled)
	}
	e.leave(held)
	e.holds(waiting, driver.Verdict{})
	e.leave(waiting)
}

// L2: a Wait that ended with its context is repeated without an Enqueue between, and what changed
// during the waits, or between two of them, is not missed.
func testWaitAgain(e *env) {
	name := e.name()
	s, other := e.session(e.backend(), nil), e.session(e.backend(), nil)
	for round := range 10 {
		held, v := e.enter(s, e.whole(name))
		e.holds(held, v)
		waiting, v := e.enter(other, e.whole(name))
		if v.Held { // after so long a pause of the machine that the holder's TTL was over
			e.Fatal("granted while another holds")
		}
		left := make(chan error, 1)
		leave := func() { left <- held.Leave(e.ctx()) }
		for n := 0; n < 8 && !v.Held; n++ {
			switch {
			case n == 3 && round%2 == 0:
				leave()
			case n == 3:
				go leave()
			}
			ctx, cancel := context.WithTimeout(e.ctx(), 100*time.Microsecond<<n)
			next, err := waiting.Wait(ctx)
			cancel()
			switch {
			case err == nil && next.Held && n < 3:
				e.Fatal("granted while another holds")
			case err == nil:
				v = next
			case !errors.Is(err, context.DeadlineExceeded):
				e.slowIfUnknown(err)
				e.Fatalf("wait %d of round %d: %v", n+1, round+1, err)
			}
		}
		if err := <-left; err != nil {
			e.slowIfUnknown(err)
			e.Fatalf("leave: %v", err)
		}
		e.holds(waiting, v)
		e.leave(waiting)
	}
}

// S1, L4: Wait on a ticket whose Enqueue was not answered. The entry is in the store, or not, or
// still under way. No verdict comes from nothing: the wait grants nothing beside a holder, and what
// it calls gone does not come, since its owner forgets it.
func testWaitUnanswered(e *env) {
	b, other := e.backend(), e.backend()
	s, beside := e.session(other, nil), e.session(b, nil)
	known, v := e.enter(s, e.whole(e.name())) // else a client's first request may need others before it
	e.holds(known, v)
	e.leave(known)
	var names []string // one for each round: an entry that comes late, and goes by its TTL, stands in no other's way
	for round := range 8 {
		for _, x := range []driver.Session{s, beside} { // the rounds together may take longer than a TTL
			if _, err := e.renew(x); err != nil {
				e.Fatalf("keepalive: %v", err)
			}
		}
		name := e.name()
		names = append(names, name)
		held, v := e.enter(beside, e.whole(name))
		e.holds(held, v)
		r := e.whole(name)
		t := s.Ticket(r)
		v, err := e.unanswered(other, t, round)
		switch {
		case v.Held:
			e.Fatalf("round %d: granted while another holds", round+1)
		case errors.Is(err, driver.ErrGone):
			time.Sleep(20 * time.Millisecond) // for an entry that comes late
			e.eventually("no entry of a ticket that was called gone", func() bool {
				if _, err := e.renew(s); err != nil {
					e.Fatalf("keepalive: %v", err)
				}
				return !slices.Contains(ids(e.list(b, name)), r.ID)
			})
			e.leave(held)
		case err != nil && !errors.Is(err, context.DeadlineExceeded):
			e.slowIfUnknown(err)
			e.Fatalf("round %d: %v", round+1, err)
		case round%2 == 0:
			e.leave(held)
			if err != nil {
				if v, err = e.ask(t); err != nil {
					e.Fatalf("round %d: asked again: %v", round+1, err)
				}
			}
			e.holds(t, v)
			e.leave(t)
		default:
			if err := t.Leave(e.ctx()); err != nil && !errors.Is(err, driver.ErrGone) && !errors.Is(err, driver.ErrForgotten) {
				e.slowIfUnknown(err)
				e.Fatalf("round %d: leave: %v", round+1, err)
			}
			e.leave(held)
		}
	}
	e.settle() // for what comes late
	for _, name := range names {
		e.empty(b, name)
	}
}

// unanswered begins an Enqueue whose context ends soon, and calls Wait if that has got no answer.
// Some rounds have no network meanwhile.
func (e *env) unanswered(b driver.Backend, t driver.Ticket, round int) (v driver.Verdict, err error) {
	within := func(d time.Duration, ask func(context.Context) (driver.Verdict, error)) {
		ctx, cancel := context.WithTimeout(e.ctx(), d)
		defer cancel()
		v, err = ask(ctx)
	}
	brief := 50 * time.Microsecond << round
	if e.h.Cut != nil && round >= 4 {
		brief = 20 * time.Millisecond
		heal := e.h.Cut(e, b)
		defer heal()
	}
	within(brief, t.Enqueue)
	if err != nil && !errors.Is(err, driver.ErrGone) {
		within(20*time.Millisecond, t.Wait)
	}
	return v, err
}
