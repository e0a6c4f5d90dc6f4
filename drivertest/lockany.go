package drivertest

import (
	"context"
	"sync"
	"time"

	"github.com/hasplock/hasp"
)

var lockAnyTests = []test{
	{name: "FirstFree", run: testLockAnyFirstFree},
	{name: "Waits", run: testLockAnyWaits},
	{name: "TwoAtOnce", run: testLockAnyTwoAtOnce},
	{name: "Nothing", run: testLockAnyNothing},
	{name: "Pool", run: testPool},
}

// lockEach has a client lock all names, each by itself.
func (e *env) lockEach(c *client, names []string) (held []*hasp.Lease) {
	for _, name := range names {
		held = append(held, e.must(c.Mutex(name).Lock(e.ctx())))
	}
	return held
}

// Each takes the first that is free, and a try that finds none says so and leaves nothing.
func testLockAnyFirstFree(e *env) {
	b, names, c, other := e.backend(), e.names(2), e.client(), e.client()
	one := e.must(hasp.LockAny(e.ctx(), mutexes(c, names)...))
	two := e.must(hasp.TryLockAny(e.ctx(), mutexes(other, names)...))
	if one.Name() != names[0] || two.Name() != names[1] {
		e.violated("took %q and %q of %q", one.Name(), two.Name(), names)
	}
	_, err := hasp.TryLockAny(e.ctx(), mutexes(c, names)...)
	e.wantErr("a third", err, hasp.ErrBusy)
	e.release(one)
	e.release(two)
	for _, name := range names {
		e.empty(b, name)
	}
}

// L2, L4: a waiter has the lock that is free first, and leaves the other queues.
func testLockAnyWaits(e *env) {
	b, names, c, other := e.backend(), e.names(3), e.client(), e.client()
	held := e.lockEach(other, names)
	a := e.start(func(ctx context.Context) (*hasp.Lease, error) { return hasp.LockAny(ctx, mutexes(c, names)...) })
	c.await(hasp.EventWaiting, 3)
	a.blocked("all are held")
	e.release(held[1])
	l := a.lease()
	if l.Name() != names[1] {
		e.violated("got %q, want the one that was released, %q", l.Name(), names[1])
	}
	for _, i := range []int{0, 2} {
		e.eventually("only the holder is left in the queue", func() bool { return len(e.list(b, names[i])) == 1 })
		e.release(held[i])
		e.empty(b, names[i])
	}
	e.release(l)
	e.empty(b, names[1])
}

// Of two grants at once one is kept. The other is free for the next, also with MinHold.
func testLockAnyTwoAtOnce(e *env) {
	names, c, other, third := e.names(2), e.client(), e.client(), e.client()
	held := e.lockEach(other, names)
	a := e.start(func(ctx context.Context) (*hasp.Lease, error) {
		long := hasp.MinHold(e.patience() + time.Minute)
		return hasp.LockAny(ctx, c.Mutex(names[0], long), c.Mutex(names[1], long))
	})
	c.await(hasp.EventWaiting, 2)
	var both sync.WaitGroup
	for _, l := range held {
		both.Go(func() {
			if err := l.Release(e.ctx()); err != nil {
				e.Errorf("release: %v", err)
			}
		})
	}
	both.Wait()
	l := a.lease()
	rest := names[0]
	if l.Name() == rest {
		rest = names[1]
	}
	next := e.must(third.Mutex(rest).Lock(e.ctx()))
	if !l.Held() || !next.Held() {
		e.Errorf("held: %t and %t", l.Held(), next.Held())
	}
	e.release(next)
}

// L3, L4: a wait that is cancelled leaves nothing in any queue.
func testLockAnyNothing(e *env) {
	b, names, c, other := e.backend(), e.names(3), e.client(), e.client()
	held := e.lockEach(other, names)
	a := e.start(func(ctx context.Context) (*hasp.Lease, error) { return hasp.LockAny(ctx, mutexes(c, names)...) })
	c.await(hasp.EventWaiting, 3)
	began := time.Now()
	a.cancel()
	<-a.done
	e.wantErr("cancelled", a.err, context.Canceled)
	if took := time.Since(began); took > e.limit(250*time.Millisecond) {
		e.Errorf("L3: returned %s after the cancel", took)
	}
	for i, name := range names {
		e.eventually("only the holder is left in the queue", func() bool { return len(e.list(b, name)) == 1 })
		e.release(held[i])
		e.empty(b, name)
	}
}

// S1: of more clients than slots each has a slot for itself, and all get one.
func testPool(e *env) {
	const slots = 3
	b, name := e.backend(), e.name()
	uses := make([]fragile, slots)
	var all fragile // no slot: counts what was done
	var wg sync.WaitGroup
	for _, c := range e.clients(slots + 2) {
		wg.Go(func() {
			for range 4 {
				l, err := c.Pool(name, slots).Lock(e.ctx())
				if err != nil {
					e.Errorf("lock of a slot: %v", err)
					return
				}
				uses[l.Number].use()
				all.uses.Add(1)
				if err := l.Release(e.ctx()); err != nil {
					e.Errorf("release: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	if all.uses.Load() != 4*(slots+2) {
		e.Errorf("used %d times", all.uses.Load())
	}
	for i := range uses {
		e.exclusive(&uses[i])
		e.empty(b, name+"/"+string(rune('0'+i)))
	}
}
