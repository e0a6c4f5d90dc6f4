package drivertest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp"
)

var exclusionTests = slices.Concat(
	exclusively("Counter", nil, testCounter),
	exclusively("Contend", nil, testContend),
	[]test{{name: "Deadlock", run: testDeadlock}},
)

// fragile is a resource that only a lock protects.
//
// The counter is read and written in two steps, so an update is lost whenever two are inside. Yet
// each step is atomic: the race detector does not know a lock outside of the process, and would
// report each correct hand-over.
type fragile struct {
	value  atomic.Int64
	inside atomic.Int64
	most   atomic.Int64 // the greatest number inside at once
	uses   atomic.Int64
}

func (f *fragile) use() {
	in := f.inside.Add(1)
	for most := f.most.Load(); in > most && !f.most.CompareAndSwap(most, in); most = f.most.Load() {
	}
	v := f.value.Load()
	time.Sleep(20 * time.Microsecond) // another that is inside is so now
	f.value.Store(v + 1)
	f.uses.Add(1)
	f.inside.Add(-1)
}

// contend makes the goroutines of every client use f a number of times each, under the lock.
func (e *env) contend(cs []*client, goroutines, times int, f *fragile, lock func(*client, context.Context) (*hasp.Lease, error)) {
	e.Helper()
	// All of them together may take as long as the machine needs. The test gives up when no client
	// is granted for a while.
	ctx, giveUp := context.WithCancelCause(e.Context())
	defer giveUp(nil)
	stuck := time.AfterFunc(e.patience(), func() {
		giveUp(fmt.Errorf("no client was granted for the suite's patience (%s)", e.patience()))
	})
	defer stuck.Stop()
	var wg sync.WaitGroup
	for _, c := range cs {
		for range goroutines {
			wg.Go(func() {
				for range times {
					l, err := lock(c, ctx)
					if err != nil {
						e.Errorf("lock: %v", err)
						return
					}
					stuck.Reset(e.patience())
					f.use()
					if err := l.Release(ctx); err != nil {
						e.Errorf("release: %v", err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	if want := int64(len(cs) * goroutines * times); f.uses.Load() != want {
		e.Errorf("used %d times, want %d", f.uses.Load(), want)
	}
}

// exclusive fails if two were inside at once, or an update was lost.
func (e *env) exclusive(f *fragile) {
	e.Helper()
	if f.most.Load() > 1 || f.value.Load() != f.uses.Load() {
		e.violated("%d were inside at once, %d of %d updates were lost",
			f.most.Load(), f.uses.Load()-f.value.Load(), f.uses.Load())
	}
}

// S1, S10: clients of a process contend with each other like processes, and so do the
// goroutines of one client.
func testCounter(e *env, l *locker) {
	var f fragile
	e.contend(e.clients(4), 4, 15, &f, func(c *client, ctx context.Context) (*hasp.Lease, error) {
		return l.lock(c)(ctx)
	})
	l.steady(e)
	e.exclusive(&f)
	l.left(e, e.backend(), 0)
}

// S10: a second acquisition by the same client waits like any other client's, through any handle:
// no re-entry by session, connection or process.
func testContend(e *env, l *locker) {
	c := e.client()
	first := e.must(l.lock(c)(e.ctx()))
	second := c.queue(l.lock(c))
	if l.try != nil {
		_, err := l.try(c)(e.ctx())
		e.wantErr("try of what the same client holds", err, hasp.ErrBusy)
	}
	second.blocked("the same client holds the lock")
	e.release(first)
	e.release(second.lease())
}

// S10: waiting for a lock that the caller's context holds is refused at once, instead of lasting
// for ever. A try, another name, and the context of a lease that is no longer held are no deadlock.
func testDeadlock(e *env) {
	c, name, other := e.client(), e.name(), e.name()
	l := e.must(c.Mutex(name).Lock(e.ctx()))
	_, err := c.Mutex(name).Lock(l.Context())
	e.wantErr("lock within the lock", err, hasp.ErrDeadlock)
	nested := e.must(c.Mutex(other).Lock(l.Context()))
	_, err = c.RWMutex(name).Lock(nested.Context())
	e.wantErr("lock within a lock within the lock", err, hasp.ErrDeadlock)
	_, err = c.Mutex(name).TryLock(l.Context())
	e.wantErr("try within the lock", err, hasp.ErrBusy)
	e.release(nested)
	e.release(l)
	_, err = c.Mutex(name).Lock(l.Context())
	e.wantErr("lock with the context of a released lease", err, context.Canceled)
	e.release(e.must(c.Mutex(name).Lock(context.WithoutCancel(l.Context()))))
}
