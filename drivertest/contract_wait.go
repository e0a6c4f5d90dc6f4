package drivertest

import (
	"context"
	"errors"
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

// L2: a Wait that ended with its context is repeated without an Enqueue between, and what changed during the waits, or between
// two of them, is not missed.
func testWaitAgain(e *env) {
	name := e.name()
	s, other := e.session(e.backend(), nil), e.session(e.backend(), nil)
	for round := range 10 {
		held, v := e.enter(s, e.whole(name))
		e.holds(held, v)
		waiting, v := e.enter(other, e.whole(name))
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
				e.starveIfUnknown(err)
				e.Fatalf("wait %d of round %d: %v", n+1, round+1, err)
			}
		}
		if err := <-left; err != nil {
			e.starveIfUnknown(err)
			e.Fatalf("leave: %v", err)
		}
		e.holds(waiting, v)
		e.leave(waiting)
	}
}
