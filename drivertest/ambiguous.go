package drivertest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hasplock/hasp"
)

var ambiguousTests = slices.Concat(
	exclusively("Enqueue", nil, testEnqueueAnswerLost),
	[]test{
		{name: "EnqueueWaiting", run: testEnqueueWaitingAnswerLost},
		{name: "Try", run: testTryAnswerLost},
		{name: "Wait", run: testWaitAnswerLost},
		{name: "Leave", run: testLeaveAnswerLost},
		{name: "LeaveUnanswered", run: testLeaveUnanswered},
		{name: "KeepAlive", needs: needsLeases, run: testKeepAliveAnswerLost},
		{name: "Publish", needs: needsValues, run: testPublishAnswerLost},
	},
)

// errLostAnswer stands for a connection that broke after the store did its work: the interceptor
// makes the real call, and then returns this instead of the answer.
var errLostAnswer = errors.New("drivertest: the answer is lost")

// loses makes the interceptor lose the first answers of a call. The test's end checks that this
// happened.
func (c *client) loses(which call, times int) {
	after, lost := losing(which, times)
	c.interceptor.spoil(nil, after)
	c.env.Cleanup(func() {
		if n := int(lost.Load()); n != times {
			c.env.Errorf("the test lost %d answers of %s, and was to lose %d", n, which, times)
		}
	})
}

// S8: the answer to an acquisition is lost, several times. The request is repeated under the same
// ID: one entry, held, with the token of the first.
func testEnqueueAnswerLost(e *env, l *locker) {
	b, c := e.backend(), e.intercepted()
	c.loses(callEnqueue, 3)
	got := e.must(l.lock(c)(e.ctx()))
	entries := e.list(b, l.name)
	stand := len(l.standing)
	if len(entries) != stand+1 {
		e.Fatalf("%d entries, want %d", len(entries), stand+1)
	}
	if last := entries[stand]; e.traits.Fencing && last.Seq != got.Token() {
		e.Errorf("token %d of the entry with Seq %d", got.Token(), last.Seq)
	}
	e.release(got)
	l.left(e, b, 0)
}

// S8, L5: a waiter whose answer is lost keeps its place.
func testEnqueueWaitingAnswerLost(e *env) {
	b, name, c, other := e.backend(), e.name(), e.intercepted(), e.client()
	held := e.must(e.client().Mutex(name).Lock(e.ctx()))
	c.loses(callEnqueue, 2)
	first := c.queue(c.Mutex(name).Lock)
	second := other.queue(other.Mutex(name).Lock)
	if n := len(e.list(b, name)); e.traits.FIFO && n != 3 {
		e.Errorf("%d entries, want 3", n)
	}
	e.release(held)
	if e.traits.FIFO {
		e.release(first.lease())
		e.release(second.lease())
	} else {
		served, last := pair(first, second)
		e.release(served.got)
		e.release(last.lease())
	}
	e.empty(b, name)
}

// S8: a try that took the lock must not find its own entry and report it as another client's.
func testTryAnswerLost(e *env) {
	b, name, c := e.backend(), e.name(), e.intercepted()
	c.loses(callEnqueue, 1)
	l := e.must(c.Mutex(name).TryLock(e.ctx()))
	if !l.Held() {
		e.Error("tried, got, and not held")
	}
	e.release(l)
	e.empty(b, name)
}

// L2: the message that woke a waiter is lost. It must ask instead of sleeping on.
func testWaitAnswerLost(e *env) {
	b, name, c := e.backend(), e.name(), e.intercepted()
	held := e.must(e.client().Mutex(name).Lock(e.ctx()))
	c.loses(callWait, 1)
	waiting := c.queue(c.Mutex(name).Lock)
	e.release(held)
	e.release(waiting.lease())
	e.empty(b, name)
}

// S7: the answer to a release is lost. At the repeated request the store has no such entry, and as
// the lease was valid all the time, the first request removed it. If the store may have forgotten
// the entry, its absence proves nothing.
func testLeaveAnswerLost(e *env) {
	b, name, c := e.backend(), e.name(), e.intercepted()
	l := e.must(c.Mutex(name).Lock(e.ctx()))
	c.loses(callLeave, 1)
	e.releaseAskedAgain(l)
	e.empty(b, name)
	e.release(e.must(e.client().Mutex(name).TryLock(e.ctx())))
}

// releaseAskedAgain releases a lease whose first Leave has lost its answer.
func (e *env) releaseAskedAgain(l *hasp.Lease) {
	e.Helper()
	err := l.Release(e.ctx())
	if e.traits.Forgets {
		e.wantErr("release that was asked for twice", err, hasp.ErrUnknown)
	} else if err != nil {
		e.Errorf("release that was asked for twice: %v", err)
	}
}

// S7, L4: the store does not answer a release. The result says "unknown", the client no longer
// believes in the lease, and the entry is removed when the store can be reached.
func testLeaveUnanswered(e *env) {
	b, name, c := e.backend(), e.name(), e.intercepted()
	l := e.must(c.Mutex(name).Lock(e.ctx()))
	c.interceptor.cut()
	ctx, cancel := context.WithTimeout(e.ctx(), 20*time.Millisecond)
	defer cancel()
	e.wantErr("release without an answer", l.Release(ctx), hasp.ErrUnknown, context.DeadlineExceeded)
	if l.Held() {
		e.Error("held after an unanswered release")
	}
	e.wantErr("a second release", l.Release(e.ctx()), hasp.ErrNotHeld)
	c.interceptor.heal()
	e.empty(b, name)
}

// S5: the answer to one renewal is lost. The next one comes in time, and nothing is lost but an
// answer. On a machine that stops for most of a TTL it does not come in time, or not even the first
// is made: another try with twice the TTL tells that from a driver that loses the lease with one
// answer.
func testKeepAliveAnswerLost(e *env) {
	const tries = 4
	for try := 1; ; try++ {
		p := newInterceptor(e.h.Open(e))
		name, c := e.name(), e.clientOn(p, p, e.h.TTL<<(try-1))
		l := e.must(c.Mutex(name).Lock(e.ctx()))
		after, lost := losing(callKeepAlive, 1)
		c.interceptor.spoil(nil, after)
		before := c.interceptor.count(callKeepAlive)
		e.eventually("three more renewals", func() bool { return c.interceptor.count(callKeepAlive) >= before+3 || !l.Held() })
		if l.Held() {
			if n := lost.Load(); n != 1 {
				e.Errorf("the test lost %d answers of KeepAlive, and was to lose 1", n)
			}
			e.release(l)
			return
		}
		if try == tries {
			e.Fatalf("lost with one answer, %d times: %v", tries, l.Err())
		}
	}
}

// The answer to a publication is lost: that is an error, but no loss, and publishing the
// same again is harmless.
func testPublishAnswerLost(e *env) {
	name, c := e.name(), e.intercepted()
	term, err := c.Election(name).Campaign(e.ctx(), []byte("first"))
	if err != nil {
		e.Fatalf("campaign: %v", err)
	}
	c.loses(callPublish, 1)
	e.wantErr("publish without an answer", term.Publish(e.ctx(), []byte("second")), errLostAnswer)
	if !term.Held() {
		e.Errorf("lost with one answer: %v", term.Err())
	}
	e.leads(c, name, term, "second")
	if err := e.once(term.Publish(e.ctx(), []byte("second"))); err != nil {
		e.Errorf("publish again: %v", err)
	}
	e.leads(c, name, term, "second")
	e.release(term.Lease)
}
