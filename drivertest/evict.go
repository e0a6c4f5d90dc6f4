package drivertest

import (
	"os"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

var evictTests = needing(needsEvicter, []test{
	{name: "Holder", run: testEvictHolder},
	{name: "Waiter", needs: needsFIFO, run: testEvictWaiter},
	{name: "Absent", run: testEvictAbsent},
	{name: "Forgotten", run: testEvictForgotten},
	{name: "Recorded", needs: needsRecord, run: testEvictRecorded},
})

func (e *env) evict(b driver.Backend, name, id string) error {
	e.Helper()
	return b.(driver.Evicter).Evict(e.ctx(), name, id, "")
}

// O1, S6, S7, L1: an operator takes the lock away. The next is granted a higher token, the holder
// learns the reason within a renewal and releases nothing, and renewing does not bring its entry
// back.
func testEvictHolder(e *env) {
	b, name, c, other := e.backend(), e.name(), e.shortLived(), e.client()
	bystander := e.must(c.Mutex(e.name()).Lock(e.ctx()))
	held := e.must(c.Mutex(name).Lock(e.ctx()))
	work := held.Context()
	next := other.queue(other.Mutex(name).Lock)
	began := time.Now()
	if err := e.evict(b, name, held.ID()); err != nil {
		select { // if it had expired, its client says so in a moment, and the test begins again
		case <-work.Done():
		case <-e.ctx().Done():
		}
		e.Fatalf("evict: %v", err)
	}
	got := next.lease()
	if e.traits.Fencing && got.Token() <= held.Token() {
		e.violated("token %d after %d", got.Token(), held.Token())
	}
	select {
	case <-work.Done():
	case <-e.ctx().Done():
		e.Fatal("the evicted holder was never told")
	}
	if took := time.Since(began); e.traits.Liveness != driver.ProcessBound && took > e.limit(e.h.TTL/3) {
		e.Errorf("told after %s, renewals come every %s", took, e.h.TTL/3)
	}
	e.lost(held, work, hasp.ReasonDenied)
	e.lastsATerm(got)
	for _, entry := range e.list(b, name) {
		if entry.ID == held.ID() {
			e.Error("the evicted entry is back")
		}
	}
	if !bystander.Held() {
		e.Errorf("an eviction took another lock of the same client: %v", bystander.Err())
	}
	e.release(got)
	e.release(bystander)
}

// L2: a waiter that is evicted does not wait on for ever: it queues again.
func testEvictWaiter(e *env) {
	b, name, c, other := e.backend(), e.name(), e.client(), e.client()
	held := e.must(e.client().Mutex(name).Lock(e.ctx()))
	evicted := c.queue(c.Mutex(name).Lock)
	id := ""
	for _, entry := range e.list(b, name) {
		if entry.ID != held.ID() {
			id = entry.ID
		}
	}
	behind := other.queue(other.Mutex(name).Lock)
	if err := e.evict(b, name, id); err != nil {
		e.Fatalf("evict: %v", err)
	}
	c.await(hasp.EventRequeued, 1)
	if !held.Held() {
		e.Errorf("the eviction of a waiter took the lock from its holder: %v", held.Err())
	}
	e.release(held)
	served, last := pair(behind, evicted)
	e.release(served.got)
	e.release(last.lease())
	if served.got.ID() == id || last.got.ID() == id {
		e.Error("granted the evicted entry")
	}
	e.empty(b, name)
}

// S6: only the entry that was named is removed.
func testEvictAbsent(e *env) {
	b, name, c := e.backend(), e.name(), e.client()
	held := e.must(c.Mutex(name).Lock(e.ctx()))
	e.wantErr("evict of an unknown ID", e.evict(b, name, "absent-1"), driver.ErrGone)
	e.wantErr("evict under an unused name", e.evict(b, e.name(), held.ID()), driver.ErrGone)
	e.stillHeld(&locker{name: name}, held)
	e.release(held)
	e.wantErr("evict of what was released", e.evict(b, name, held.ID()), driver.ErrGone)
}

// S7: the release may be the first to find out, with a renewal long to come.
func testEvictForgotten(e *env) {
	b, name, c := e.backend(), e.name(), e.client()
	for range 3 {
		held := e.must(c.Mutex(name).Lock(e.ctx()))
		if err := e.evict(b, name, held.ID()); err != nil {
			e.Fatalf("evict: %v", err)
		}
		e.wantErr("release of what was evicted", held.Release(e.ctx()), hasp.ErrLost)
	}
	e.empty(b, name)
}

// Every client can read who took a lock away, and why, even if the name has been used again since;
// an eviction of an absent entry leaves no trace.
func testEvictRecorded(e *env) {
	name, c, operator, reader := e.name(), e.client(), e.client(), e.client()
	recorded := func(want string) {
		e.Helper()
		got, err := reader.LastEviction(e.ctx(), name)
		switch {
		case err != nil:
			e.Fatalf("last eviction: %v", err)
		case want == "" && got != nil, want != "" && (got == nil || got.Why != want):
			e.Errorf("recorded %+v, want %q", got, want)
		case got != nil && (got.By.PID != os.Getpid() || got.ID == "" || got.At.IsZero()):
			e.Errorf("recorded %+v", got)
		}
	}
	recorded("")
	e.wantErr("evict of an absent entry", operator.Evict(e.ctx(), name, "absent-1", "by mistake"), hasp.ErrNotFound)
	recorded("")
	for _, why := range []string{"web-3 is dead", "it's \"hung\"; 過負荷"} {
		held := e.must(c.Mutex(name).Lock(e.ctx()))
		// From before the eviction to the last look the queue is not empty: a store may forget, at
		// any moment, the data of an unused name.
		next := operator.queue(operator.Mutex(name).Lock)
		if err := operator.Evict(e.ctx(), name, held.ID(), why); err != nil {
			e.Fatalf("evict: %v", err)
		}
		recorded(why)
		e.wantErr("evict of an absent entry", operator.Evict(e.ctx(), name, held.ID(), "too late"), hasp.ErrNotFound)
		got := next.lease()
		again := reader.queue(reader.Mutex(name).Lock)
		e.release(got)
		got = again.lease()
		recorded(why)
		e.release(got)
	}
}
