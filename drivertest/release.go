package drivertest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hasplock/hasp"
)

var releaseTests = slices.Concat(
	exclusively("Twice", nil, testReleaseTwice),
	exclusively("Cancelled", nil, testReleaseCancelled),
	[]test{
		{name: "AtOnce", run: testReleaseAtOnce},
		{name: "Nil", run: testReleaseNil},
		{name: "EndsContext", run: testReleaseEndsContext},
		{name: "NextOfSameClient", run: testReleaseNextOfSameClient},
	},
)

// S6, S7: only the first release counts. The second does not affect the present holder.
func testReleaseTwice(e *env, l *locker) {
	c, other := e.client(), e.client()
	first := e.must(l.lock(c)(e.ctx()))
	next := other.queue(l.lock(other))
	e.release(first)
	got := next.lease()
	e.wantErr("second release", first.Release(e.ctx()), hasp.ErrNotHeld)
	e.wantErr("error of a released lease", first.Err(), hasp.ErrNotHeld)
	e.stillHeld(l, got)
	e.release(got)
	e.wantErr("third release", first.Release(e.ctx()), hasp.ErrNotHeld)
	l.left(e, e.backend(), 0)
}

// stillHeld asks the store whether the lease is held, as its owner believes.
func (e *env) stillHeld(l *locker, lease *hasp.Lease) {
	e.Helper()
	if !lease.Held() {
		e.Errorf("no longer held: %v", lease.Err())
	}
	entries := e.list(e.backend(), l.name)
	if stand := len(l.standing); len(entries) <= stand || entries[stand].ID != lease.ID() {
		e.Errorf("the store does not have %s in front: %v", lease.ID(), ids(entries))
	}
}

// S7: one of many concurrent releases reports success, the others that there was nothing to
// release.
func testReleaseAtOnce(e *env) {
	c, name := e.client(), e.name()
	for range 5 {
		l := e.must(c.Mutex(name).Lock(e.ctx()))
		var released atomic.Int32
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				switch err := l.Release(e.Context()); {
				case err == nil:
					released.Add(1)
				case !errors.Is(err, hasp.ErrNotHeld):
					e.Errorf("release: %v", err)
				}
			})
		}
		wg.Wait()
		if n := released.Load(); n != 1 {
			e.Errorf("%d releases succeeded", n)
		}
	}
	e.empty(e.backend(), name)
}

// S7: there is nothing to release in a nil lease.
func testReleaseNil(e *env) {
	var l *hasp.Lease
	e.wantErr("release of a nil lease", l.Release(e.ctx()), hasp.ErrNotHeld)
	if l.Held() {
		e.Error("a nil lease is held")
	}
	var t *hasp.Term
	e.wantErr("publishing in a nil term", t.Publish(e.ctx(), nil), hasp.ErrNotHeld)
}

// S7, L4: with an ended (or nil) context nothing can be confirmed, but the lock is still released.
func testReleaseCancelled(e *env, l *locker) {
	b, c, other := e.backend(), e.client(), e.client()
	over, cancel := context.WithCancel(e.ctx())
	cancel()
	for _, ctx := range []context.Context{over, nil} {
		held := e.must(l.lock(c)(e.ctx()))
		next := other.queue(l.lock(other))
		err := held.Release(ctx)
		e.wantErr("release with a context that is over", err, hasp.ErrUnknown)
		if ctx != nil {
			e.wantErr("release with a context that is over", err, context.Canceled)
		}
		if held.Held() {
			e.Error("held after its release")
		}
		e.release(next.lease())
		l.left(e, b, 0)
	}
}

// S5: the work's context ends with the release, and no loss is reported.
func testReleaseEndsContext(e *env) {
	c, name := e.client(), e.name()
	type key struct{}
	parent, cancel := context.WithCancel(context.WithValue(e.ctx(), key{}, "value"))
	l := e.must(c.Mutex(name).Lock(parent))
	work := l.Context()
	cancel()
	if work.Err() != nil || !l.Held() {
		e.Errorf("the context that bounded the waiting ended the lease: %v, %v", work.Err(), l.Err())
	}
	if work.Value(key{}) != "value" {
		e.Error("the caller's values are missing in the lease's context")
	}
	e.release(l)
	if !errors.Is(context.Cause(work), hasp.ErrNotHeld) {
		e.Errorf("after the release the work's context has the cause %v", context.Cause(work))
	}
	if err := l.Err(); errors.Is(err, hasp.ErrLost) {
		e.Errorf("a release is reported as a loss: %v", err)
	}
}

// S6: a retried or late release concerns one lease, never a newer one of the same client,
// session and name.
func testReleaseNextOfSameClient(e *env) {
	c, name := e.intercepted(), e.name()
	first := e.must(c.Mutex(name).Lock(e.ctx()))
	c.loses(callLeave, 1)
	again := e.start(c.Mutex(name).Lock) // gets it as soon as the first Leave arrives
	e.releaseAskedAgain(first)
	second := again.lease()
	e.wantErr("second release", first.Release(e.ctx()), hasp.ErrNotHeld)
	if entries := e.list(e.backend(), name); len(entries) != 1 || entries[0].ID != second.ID() {
		e.Errorf("the release removed a newer entry: %v", ids(entries))
	}
	e.release(second)
}
