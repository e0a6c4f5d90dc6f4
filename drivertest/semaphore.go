package drivertest

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp"
)

var semaphoreTests = needing(needsCounting, []test{
	{name: "Permits", run: testPermits},
	{name: "AnyHolderLeaves", run: testAnyHolderLeaves},
	{name: "LargeNotStarved", needs: needsFIFO, run: testLargeNotStarved},
	{name: "Weighted", run: testWeighted},
})

func permits(c *client, name string, n, k int64) acquire {
	return func(ctx context.Context) (*hasp.Lease, error) { return c.Semaphore(name, n).Acquire(ctx, k) }
}

// S1: at most as many holders as there are permits.
func testPermits(e *env) {
	const n = 4
	name, b := e.name(), e.backend()
	var held []*hasp.Lease
	cs := e.clients(n)
	for _, c := range cs {
		held = append(held, e.must(permits(c, name, n, 1)(e.ctx())))
	}
	_, err := cs[0].Semaphore(name, n).TryAcquire(e.ctx(), 1)
	e.wantErr("one too many", err, hasp.ErrBusy)
	all := cs[0].queue(permits(cs[0], name, n, n))
	for _, l := range held {
		all.blocked("a holder has a permit")
		e.release(l)
	}
	got := all.lease()
	_, err = cs[1].Semaphore(name, n).TryAcquire(e.ctx(), 1)
	e.wantErr("beside all permits", err, hasp.ErrBusy)
	e.release(got)
	e.empty(b, name)
}

// L2: any holder that leaves wakes a waiter, not only the one directly ahead of it; so does a
// waiter ahead that gives up.
func testAnyHolderLeaves(e *env) {
	const n = 3
	for leaves := range n {
		name, cs := e.name(), e.clients(n+2)
		var held []*hasp.Lease
		for _, c := range cs[:n] {
			held = append(held, e.must(permits(c, name, n, 1)(e.ctx())))
		}
		first := cs[n].queue(permits(cs[n], name, n, 1))
		second := cs[n+1].queue(permits(cs[n+1], name, n, 1))
		e.release(held[leaves])
		if e.traits.FIFO {
			held[leaves] = first.lease()
			second.blocked("all permits are taken")
		} else {
			first, second = pair(first, second)
			held[leaves] = first.got
		}
		e.release(held[(leaves+1)%n])
		held[(leaves+1)%n] = second.lease()
		for _, l := range held {
			e.release(l)
		}
	}
	name, cs := e.name(), e.clients(3)
	held := e.must(permits(cs[0], name, n, 1)(e.ctx()))
	large := cs[1].queue(permits(cs[1], name, n, n))
	if e.traits.FIFO {
		small := cs[2].queue(permits(cs[2], name, n, 1))
		large.cancel() // no holder has released, and the small one fits now
		e.release(small.lease())
	}
	e.release(held)
}

// pair returns the one that was served, and the other.
func pair(a, b *attempt) (served, other *attempt) {
	select {
	case <-a.done:
		a.lease()
		return a, b
	case <-b.done:
		b.lease()
		return b, a
	}
}

// L5: a request for many is not overtaken for ever by small ones.
func testLargeNotStarved(e *env) {
	const n = 4
	name, cs := e.name(), e.clients(4)
	held := e.must(permits(cs[0], name, n, 2)(e.ctx()))
	large := cs[1].queue(permits(cs[1], name, n, 3))
	small := cs[2].queue(permits(cs[2], name, n, 1))
	_, err := cs[3].Semaphore(name, n).TryAcquire(e.ctx(), 1)
	e.wantErr("try past a waiting request", err, hasp.ErrBusy)
	small.blocked("a large request waits ahead")
	e.release(held)
	l := large.lease()
	e.release(small.lease()) // 3 + 1 fit together
	e.release(l)
}

// S1, L2: random weights, many clients. The sum inside never exceeds the capacity, and every client
// is served: a lost wake-up would leave one waiting.
func testWeighted(e *env) {
	const n = 10
	name, ctx := e.name(), e.ctx()
	var inside, served atomic.Int64
	var wg sync.WaitGroup
	for _, c := range e.clients(6) {
		for range 3 {
			wg.Go(func() {
				for range 10 {
					k := 1 + rand.Int64N(n)
					if rand.N(3) > 0 {
						k = 1 + k/4 // mostly small ones, so that several hold at once
					}
					e.under(ctx, permits(c, name, n, k), func() {
						if sum := inside.Add(k); sum > n {
							e.Errorf("%d of %d permits are taken", sum, n)
						}
						time.Sleep(20 * time.Microsecond) // another that is inside is so now
						served.Add(1)
						inside.Add(-k)
					})
				}
			})
		}
	}
	wg.Wait()
	if served.Load() != 180 {
		e.Errorf("served %d of 180", served.Load())
	}
	e.empty(e.backend(), name)
}
