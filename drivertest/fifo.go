package drivertest

import (
	"slices"
	"sync"

	"github.com/hasplock/hasp"
)

var fifoTests = slices.Concat(
	exclusively("Order", needsFIFO, testOrder),
	exclusively("Place", needsFIFO, testPlace),
	[]test{{name: "PlaceOfReaders", needs: both(needsFIFO, needsShared), run: testPlaceOfReaders}},
	exclusively("OrderUnderLoad", both(needsFIFO, needsFencing), testOrderUnderLoad),
)

// L5: the first in the queue is served first, through separate clients. No inversion is allowed,
// except for waiters whose session was lost: on a machine that stops for longer than the session
// lasts, a waiter loses its place and reports it.
func testOrder(e *env, l *locker) {
	const n = 8
	holder := e.must(l.lock(e.client())(e.ctx()))
	var waiting []*attempt
	clients := e.clients(n)
	for _, c := range clients {
		waiting = append(waiting, c.queue(l.lock(c)))
	}
	var mu sync.Mutex
	var order []int
	var wg sync.WaitGroup
	for i, a := range waiting {
		wg.Go(func() {
			<-a.done
			if a.err != nil {
				e.Errorf("waiter %d: %v", i, a.err)
				return
			}
			mu.Lock()
			order = append(order, i) // under the lock, so this is the order of the grants
			mu.Unlock()
			if err := a.got.Release(e.ctx()); err != nil {
				e.Errorf("release by waiter %d: %v", i, err)
			}
		})
	}
	e.settle()
	e.release(holder)
	wg.Wait()
	kept := slices.DeleteFunc(slices.Clone(order), func(i int) bool {
		requeued := clients[i].saw(hasp.EventRequeued)
		if len(requeued) > 0 {
			e.Logf("waiter %d has lost its place, which is allowed to fewer than half of the waiters: its session ended while "+
				"this machine did not get to renewing it, and it said so (%v)", i, requeued[0].Err)
		}
		return len(requeued) > 0
	})
	if len(order) != n || len(kept) < n/2 || !slices.IsSorted(kept) {
		e.Errorf("served in the order %v; %v have kept their places, must be at least %d, and in order", order, kept, n/2)
	}
}

// The event of a waiter says which of those who wait it is, or nothing. Those who have left do not
// count, wherever they were.
func testPlace(e *env, l *locker) {
	holder := e.must(l.lock(e.client())(e.ctx()))
	var all []*client
	waits := func(want int) *attempt {
		e.Helper()
		all = append(all, e.client())
		return e.waitsAt(all, want, l.lock(all[len(all)-1]))
	}
	first, second := waits(1), waits(2)
	waits(3)
	second.cancel()
	<-second.done
	l.left(e, e.backend(), 3)
	last := waits(3)
	last.cancel()
	<-last.done
	l.left(e, e.backend(), 3)
	waits(3)
	e.release(holder)
	first.lease()
	l.left(e, e.backend(), 3)
	waits(3)
}

// Readers that hold are not counted, and readers that wait are.
func testPlaceOfReaders(e *env) {
	name := e.name()
	for range 3 {
		e.must(e.client().RWMutex(name).RLock(e.ctx()))
	}
	var all []*client
	for i, reads := range []bool{false, true, true, false} {
		c := e.client()
		all = append(all, c)
		lock := c.RWMutex(name).Lock
		if reads {
			lock = c.RWMutex(name).RLock
		}
		e.waitsAt(all, i+1, lock)
	}
}

// waitsAt has the last of all clients queue, whose place must be want, or unknown.
func (e *env) waitsAt(all []*client, want int, lock acquire) *attempt {
	e.Helper()
	c := all[len(all)-1]
	a := c.queue(lock)
	for _, other := range all {
		if len(other.saw(hasp.EventRequeued)) > 0 {
			e.Skip("a session ended while this machine did not get to renewing it: the places are not known")
		}
	}
	if got := c.saw(hasp.EventWaiting)[0].Place; got != want && got != 0 {
		e.Errorf("the place of a waiter is %d, want %d, or 0 for unknown", got, want)
	}
	return a
}

// L5, S2: with many clients that come and go, grants follow the order of entry, as do the tokens.
func testOrderUnderLoad(e *env, l *locker) {
	var mu sync.Mutex
	var tokens []uint64
	ctx := e.ctx()
	var wg sync.WaitGroup
	for _, c := range e.clients(6) {
		wg.Go(func() {
			for range 12 {
				got, err := l.lock(c)(ctx)
				if err != nil {
					e.Errorf("lock: %v", err)
					return
				}
				mu.Lock()
				tokens = append(tokens, got.Token())
				mu.Unlock()
				if err := got.Release(ctx); err != nil {
					e.Errorf("release: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	if !slices.IsSorted(tokens) {
		e.Errorf("grants out of order: %v", tokens)
	}
}
