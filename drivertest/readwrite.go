package drivertest

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp"
)

var readWriteTests = needing(needsShared, []test{
	{name: "Together", run: testReadersTogether},
	{name: "Exclude", run: testReadWriteExclude},
	{name: "WriterNotStarved", needs: needsFIFO, run: testWriterNotStarved},
	{name: "Batch", run: testReadersBatch},
	{name: "Mixed", run: testReadWriteMixed},
})

// needing adds a need to each test.
func needing(needs func(*env) string, tests []test) []test {
	tests = slices.Clone(tests)
	for i, x := range tests {
		tests[i].needs = needs
		if x.needs != nil {
			tests[i].needs = both(needs, x.needs)
		}
	}
	return tests
}

// S1: any number of readers hold at once, of one client and of several.
func testReadersTogether(e *env) {
	name := e.name()
	var leases []*hasp.Lease
	for _, c := range e.clients(3) {
		for range 3 {
			leases = append(leases, e.must(c.RWMutex(name).RLock(e.ctx())))
		}
		leases = append(leases, e.must(c.RWMutex(name).TryRLock(e.ctx())))
	}
	for _, l := range leases {
		if !l.Held() {
			e.Errorf("a reader among readers does not hold: %v", l.Err())
		}
	}
	for _, l := range leases {
		e.release(l)
	}
}

// S1: writers exclude all others, readers exclude writers, and the mutex of the name is a writer.
func testReadWriteExclude(e *env) {
	name, c, other := e.name(), e.client(), e.client()
	busy := func(what string, tries ...acquire) {
		e.Helper()
		for i, try := range tries {
			if l, err := try(e.ctx()); err == nil {
				e.Errorf("%s: try %d succeeded", what, i)
				e.release(l)
			} else {
				e.wantErr(what, err, hasp.ErrBusy)
			}
		}
	}
	for what, lock := range map[string]acquire{"writer": c.RWMutex(name).Lock, "mutex": c.Mutex(name).Lock} {
		l := e.must(lock(e.ctx()))
		for _, o := range []*client{c, other} {
			busy("beside a "+what, o.RWMutex(name).TryLock, o.RWMutex(name).TryRLock, o.Mutex(name).TryLock)
		}
		e.release(l)
	}
	reader := e.must(c.RWMutex(name).RLock(e.ctx()))
	busy("beside a reader", c.RWMutex(name).TryLock, other.RWMutex(name).TryLock, other.Mutex(name).TryLock)
	e.release(e.must(other.RWMutex(name).TryRLock(e.ctx())))
	e.release(reader)
	e.release(e.must(other.Mutex(name).TryLock(e.ctx())))
}

// L5: a writer that waits holds back the readers behind it, so that it cannot starve.
func testWriterNotStarved(e *env) {
	name, cs := e.name(), e.clients(4)
	first := e.must(cs[0].RWMutex(name).RLock(e.ctx()))
	writer := cs[1].queue(cs[1].RWMutex(name).Lock)
	late := cs[2].queue(cs[2].RWMutex(name).RLock)
	_, err := cs[3].RWMutex(name).TryRLock(e.ctx())
	e.wantErr("try of a reader behind a waiting writer", err, hasp.ErrBusy)
	writer.blocked("a reader holds")
	late.blocked("a writer waits ahead of this reader")
	e.release(first)
	w := writer.lease()
	late.blocked("the writer holds")
	e.release(w)
	e.release(late.lease())
}

// L5: readers that stand together enter together, on one release.
func testReadersBatch(e *env) {
	const n = 5
	name := e.name()
	writer := e.must(e.client().RWMutex(name).Lock(e.ctx()))
	var readers []*attempt
	for _, c := range e.clients(n) {
		readers = append(readers, c.queue(c.RWMutex(name).RLock))
	}
	last := e.client()
	next := last.queue(last.RWMutex(name).Lock)
	for _, r := range readers {
		r.blocked("the writer holds")
	}
	e.release(writer)
	for _, r := range readers {
		r.lease() // each while all the others hold
	}
	next.blocked("readers hold")
	for _, r := range readers {
		e.release(r.lease())
	}
	e.release(next.lease())
}

// S1: under load a writer is never inside with another.
func testReadWriteMixed(e *env) {
	name := e.name()
	var written fragile
	var readers atomic.Int64
	ctx := e.ctx()
	var wg sync.WaitGroup
	for i, c := range e.clients(6) {
		wg.Go(func() {
			for j := range 15 {
				if (i+j)%3 == 0 {
					e.under(ctx, c.RWMutex(name).Lock, func() {
						if n := readers.Load(); n != 0 {
							e.Errorf("a writer is inside with %d readers", n)
						}
						written.use()
					})
				} else {
					e.under(ctx, c.RWMutex(name).RLock, func() {
						readers.Add(1)
						time.Sleep(20 * time.Microsecond)
						if n := written.inside.Load(); n != 0 {
							e.Errorf("a reader is inside with %d writers", n)
						}
						readers.Add(-1)
					})
				}
			}
		})
	}
	wg.Wait()
	e.exclusive(&written)
	e.empty(e.backend(), name)
}

// under runs fn under a lock. It may be called from any goroutine.
func (e *env) under(ctx context.Context, lock acquire, fn func()) {
	l, err := lock(ctx)
	if err != nil {
		e.Errorf("lock: %v", err)
		return
	}
	fn()
	if err := l.Release(ctx); err != nil {
		e.Errorf("release: %v", err)
	}
}
