package drivertest

import (
	"sync/atomic"

	"github.com/hasplock/hasp/driver"
)

func needsAlerter(e *env) string {
	_, ok := e.session(e.backend(), nil).Ticket(e.whole(e.name())).(driver.Alerter)
	return unless(ok, "to tell waiters that do not wait in Wait")
}

// alerted is a waiter that does not call Wait.
type alerted struct {
	*env
	driver.Ticket
	news   chan struct{}
	armed  int
	called atomic.Int32
}

// arm has the ticket tell of news.
func (a *alerted) arm() {
	a.Helper()
	a.armed++
	told := func() {
		if int(a.called.Add(1)) <= cap(a.news) {
			a.news <- struct{}{}
		}
	}
	if !a.Ticket.(driver.Alerter).Alert(told) {
		a.Fatal("the ticket cannot tell, and the store pushes")
	}
}

// granted looks when it is told, and not before.
func (a *alerted) granted(what string) {
	a.Helper()
	for {
		select {
		case <-a.news:
		case <-a.ctx().Done():
			a.Fatalf("%s: never told", what)
		}
		v, err := a.Enqueue(a.ctx())
		switch {
		case err != nil:
			a.Fatalf("%s: %v", what, err)
		case v.Held:
			return
		}
		a.arm() // it was early
	}
}

// L2: a ticket that can tell without a goroutine in Wait tells of a grant, whether that comes before or after it is asked to tell, and
// of the end of its session; once each time, and not when nothing is to be told any more.
func testAlert(e *env) {
	b, name := e.backend(), e.name()
	s := e.session(b, nil)
	holder, v := e.enter(s, e.whole(name))
	e.holds(holder, v)
	waiter := func() *alerted {
		k, v := e.enter(s, e.whole(name))
		if v.Held {
			e.Fatal("two hold")
		}
		return &alerted{env: e, Ticket: k, news: make(chan struct{}, 16)}
	}
	before := waiter()
	before.arm()
	e.leave(holder)
	before.granted("a grant that comes after Alert")

	after := waiter()
	e.leave(before)
	after.arm()
	after.granted("a grant that comes before Alert")

	silent := waiter()
	silent.arm()
	if !silent.Ticket.(driver.Alerter).Alert(nil) {
		e.Error("to tell nothing is refused")
	}
	told := silent.called.Load() // perhaps it was early
	e.leave(after)
	e.holds(silent, driver.Verdict{})
	if n := silent.called.Load(); n != told {
		e.Errorf("told %d times when nothing was to be told", n-told)
	}

	other := e.session(b, nil)
	k, v := e.enter(other, e.whole(name))
	if v.Held {
		e.Fatal("two hold")
	}
	last := &alerted{env: e, Ticket: k, news: make(chan struct{}, 16)}
	last.arm()
	if err := other.Close(e.ctx()); err != nil {
		e.Fatal(err)
	}
	select {
	case <-last.news:
	case <-e.ctx().Done():
		e.Error("the end of the session: never told")
	}
	e.leave(silent)
	for _, a := range []*alerted{before, after, silent, last} {
		if n := int(a.called.Load()); n > a.armed {
			e.Errorf("told %d times, asked to tell %d times", n, a.armed)
		}
	}
}
