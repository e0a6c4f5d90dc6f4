package drivertest

import (
	"context"
	"errors"
	"time"

	"github.com/hasplock/hasp"
)

var lossTests = []test{
	{name: "BeforeRegrant", needs: needsLeases, run: testLossBeforeRegrant},
	{name: "MarginKept", needs: needsLeases, run: testMarginKept},
	{name: "Noticed", needs: needsLoss, run: testLossNoticed},
	{name: "NotResurrected", needs: needsLeases, run: testNotResurrected},
	{name: "DyingEntry", needs: needsLeases, run: testDyingEntry},
	{name: "WaiterRequeues", needs: both(needsFIFO, needsLeases), run: testWaiterRequeues},
	{name: "DeadWaiterPassed", needs: needsLeases, run: testDeadWaiterPassed},
	{name: "Deposed", needs: both(needsLeases, needsValues), run: testDeposed},
	{name: "Permits", needs: both(needsLeases, needsCounting), run: testLostPermits},
}

// cut severs an intercepted client from the store, in the harness's way if it has one.
func (e *env) cut(c *client) (heal func()) {
	if e.h.Cut != nil {
		c.interceptor.disturbances.Add(1)
		heal := e.h.Cut(e, c.interceptor.Backend)
		return func() { c.interceptor.disturbances.Add(1); heal() }
	}
	c.interceptor.cut()
	return c.interceptor.heal
}

// trust is how long a client believes in a lease after the last renewal (D, with the
// default margin).
func (e *env) trust() time.Duration {
	return e.h.TTL - e.h.TTL/100 - max(e.h.TTL/10, 50*time.Millisecond)
}

// lost requires that a lease is lost in every respect, for this reason.
func (e *env) lost(l *hasp.Lease, work context.Context, reason hasp.Reason) {
	e.Helper()
	if l.Held() {
		e.Error("a lost lease is held")
	}
	select {
	case <-l.Context().Done():
	default:
		e.Error("the context has not ended")
	}
	if work.Err() == nil {
		e.Error("the work's context goes on")
	}
	var loss *hasp.LostError
	if cause := context.Cause(work); !errors.As(cause, &loss) {
		e.Fatalf("the work's context ended with the cause %v", cause)
	}
	if loss.Reason != reason || loss.Name != l.Name() || loss.Token != l.Token() || loss.Confirmed.After(loss.Since) {
		e.Errorf("lost: %+v; want the reason %q", loss, reason)
	}
	e.wantErr("error of a lost lease", l.Err(), hasp.ErrLost)
	e.wantErr("release of a lost lease", l.Release(e.ctx()), hasp.ErrLost)
}

// S1, S4, S5, L1, O1: a holder that is cut off has stopped believing, and says so to every caller
// that asks, when the store grants the next one; and at the latest at its deadline. Its late calls
// do not touch the next.
func testLossBeforeRegrant(e *env) {
	name, c, other := e.name(), e.shortLived(), e.client()
	held := e.must(c.Mutex(name).Lock(e.ctx()))
	work := held.Context()
	next := other.queue(other.Mutex(name).Lock)
	began := time.Now()
	heal := e.cut(c)
	if e.fake {
		<-work.Done()
		if took := time.Since(began); took > e.trust() {
			e.Errorf("lost %s after the last renewal at the earliest, and trust is %s", took, e.trust())
		}
		next.blocked("the loss comes before the next grant, not with it")
	}
	got := next.lease()
	// Held looks at the clock when it is called. It is false now although the lease's timer has not
	// been waited for: that keeps two holders from believing.
	if held.Held() {
		e.violated("held after the store has granted the lock to another")
	}
	e.lost(held, work, hasp.ReasonExpired)
	if e.traits.Fencing && got.Token() <= held.Token() {
		e.violated("token %d after %d", got.Token(), held.Token())
	}
	heal()
	e.lastsATerm(got)
	if held.Held() {
		e.violated("held again after a loss")
	}
	e.release(got)
	e.empty(e.backend(), name)
}

// S4: the safety margin lies between the last belief and the next grant, even if the store can be
// reached again just when the belief has ended, and the holder's client could clean up at once.
func testMarginKept(e *env) {
	name, c, other := e.name(), e.shortLived(), e.client()
	held := e.must(c.Mutex(name).Lock(e.ctx()))
	next := other.queue(other.Mutex(name).Lock)
	heal := e.cut(c)
	var believed time.Time
	for held.Held() {
		believed = time.Now()
		time.Sleep(time.Millisecond)
	}
	heal()
	got := next.lease()
	// Read after the grant, so that it can only be later than that was.
	if gap, margin := time.Since(believed), max(e.h.TTL/10, 50*time.Millisecond); gap < margin {
		e.violated("the next holds %s after the last belief, less than the safety margin of %s", gap, margin)
	}
	e.release(got)
}

// lastsATerm watches a lease for longer than a TTL: the remains of an earlier holder must have no
// effect on it.
func (e *env) lastsATerm(l *hasp.Lease) {
	e.Helper()
	timer := time.NewTimer(e.h.TTL + e.h.TTL/5)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.Context().Done():
		e.Errorf("lost: %v", l.Err())
	}
	if entries := e.list(e.backend(), l.Name()); len(entries) == 0 || entries[0].ID != l.ID() {
		e.Errorf("the store does not have %s in front: %v", l.ID(), ids(entries))
	}
}

// S5: a timer reports the loss, even if no caller asks the lease.
func testLossNoticed(e *env) {
	c := e.shortLived()
	held := e.must(c.Mutex(e.name()).Lock(e.ctx()))
	work := held.Context()
	began := time.Now()
	heal := e.cut(c)
	select {
	case <-work.Done():
	case <-e.ctx().Done():
		e.Fatal("a holder without a store was never told")
	}
	if took := time.Since(began); took > e.limit(e.trust()) {
		e.Errorf("told after %s", took)
	}
	e.lost(held, work, hasp.ReasonExpired)
	heal()
}

// S6: an answer to a renewal that comes after the deadline is no renewal, even though the
// store may well have kept the entry.
func testNotResurrected(e *env) {
	name, c := e.name(), e.shortLived()
	held := e.must(c.Mutex(name).Lock(e.ctx()))
	work := held.Context()
	late := make(chan struct{})
	c.interceptor.spoil(nil, func(k call, err error) error {
		if k == callKeepAlive {
			<-late // the store has renewed; its answer is on the way
		}
		return err
	})
	<-work.Done()
	close(late)
	c.interceptor.spoil(nil, nil)
	for range 5 {
		e.settle()
		if held.Held() {
			e.Fatal("a late answer made a lost lease held")
		}
	}
	e.lost(held, work, hasp.ReasonExpired)
	e.afresh(c, held)
}

// afresh makes the client that lost a lease acquire it again: as another entry, which the old one
// does not disturb.
func (e *env) afresh(c *client, old *hasp.Lease) {
	e.Helper()
	again := e.must(c.Mutex(old.Name()).Lock(e.ctx()))
	if again.ID() == old.ID() || e.traits.Fencing && again.Token() <= old.Token() {
		e.Errorf("acquired as %s with token %d, after %s with token %d", again.ID(), again.Token(), old.ID(), old.Token())
	}
	for _, entry := range e.list(e.backend(), old.Name()) {
		if entry.ID == old.ID() {
			e.Error("acquired while the entry of the previous session stands in front")
		}
	}
	e.lastsATerm(again)
	e.release(again)
}

// S6: after an outage the client finds the entry of its previous session, which the store
// is about to remove. It must not take that for its own.
func testDyingEntry(e *env) {
	name, c := e.name(), e.shortLived()
	old := e.must(c.Mutex(name).Lock(e.ctx()))
	work := old.Context()
	heal := e.cut(c)
	<-work.Done()
	if e.h.Cut == nil {
		heal = c.interceptor.healStore // a new session works, the old one cannot clean up
	}
	heal()
	e.afresh(c, old)
}

// L2: a waiter whose session dies while it waits does not wait on for an entry that no longer
// exists: it queues again, and is granted its new entry.
func testWaiterRequeues(e *env) {
	b, name, c := e.backend(), e.name(), e.shortLived()
	held := e.must(e.client().Mutex(name).Lock(e.ctx()))
	waiting := c.queue(c.Mutex(name).Lock)
	old := e.list(b, name)
	heal := e.cut(c)
	e.eventually("the dead waiter's entry removed by the store", func() bool { return len(e.list(b, name)) == 1 })
	waiting.blocked("another holds")
	heal()
	c.await(hasp.EventRequeued, 1)
	e.release(held)
	got := waiting.lease()
	for _, entry := range old {
		if entry.ID == got.ID() {
			e.Error("granted the entry that had died")
		}
	}
	e.lastsATerm(got)
	e.release(got)
}

// L1, L2: others proceed past a waiter that is dead.
func testDeadWaiterPassed(e *env) {
	name, dead, behind := e.name(), e.shortLived(), e.client()
	held := e.must(e.client().Mutex(name).Lock(e.ctx()))
	dying := dead.queue(dead.Mutex(name).Lock)
	next := behind.queue(behind.Mutex(name).Lock)
	began := time.Now()
	heal := e.cut(dead)
	e.release(held)
	got := next.lease()
	if took := time.Since(began); took > e.limit(e.h.TTL+time.Second) {
		e.Errorf("granted %s after the waiter ahead died", took)
	}
	dying.blocked("it is cut off, and another holds")
	heal()
	dying.blocked("another holds")
	e.release(got)
	e.release(dying.lease())
}

// S6, S7: a leader that was deposed while it was cut off cannot publish, nor resign for
// its successor.
func testDeposed(e *env) {
	name, c, other := e.name(), e.shortLived(), e.client()
	old, err := c.Election(name).Campaign(e.ctx(), []byte("old"))
	if err != nil {
		e.Fatalf("campaign: %v", err)
	}
	term, waiting := e.candidate(other, name, "new")
	heal := e.cut(c)
	waiting.lease()
	heal()
	e.wantErr("publish of a deposed leader", old.Publish(e.ctx(), []byte("old again")), hasp.ErrLost)
	e.wantErr("resignation of a deposed leader", old.Release(e.ctx()), hasp.ErrLost)
	e.leads(other, name, *term, "new")
	e.release((*term).Lease)
}

// L1: all permits of a lost holder become free.
func testLostPermits(e *env) {
	name, c, other := e.name(), e.shortLived(), e.client()
	lost := e.must(permits(c, name, 3, 2)(e.ctx()))
	stays := e.must(permits(other, name, 3, 1)(e.ctx()))
	next := other.queue(permits(other, name, 3, 2))
	heal := e.cut(c)
	got := next.lease()
	if lost.Held() {
		e.violated("held after the store has granted its permits to another")
	}
	heal()
	e.release(stays)
	e.release(got)
	e.release(e.must(permits(other, name, 3, 3)(e.ctx())))
}
