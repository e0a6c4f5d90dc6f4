package drivertest

import (
	"time"
)

var pushTests = needing(needsPush, []test{
	{name: "NoPolling", solo: true, run: testNoPolling},
	{name: "NoHerd", needs: needsFIFO, run: testNoHerd},
	{name: "QuitterWakesNobody", needs: needsFIFO, run: testQuitterWakesNobody},
	{name: "BatchOnly", needs: both(needsFIFO, needsShared), run: testBatchOnly},
})

// asked counts the questions "do I hold?", and the wake-ups that make a waiter ask.
func asked(cs []*client) int {
	n := 0
	for _, c := range cs {
		n += c.interceptor.count(callWait, callEnqueue)
	}
	return n
}

func (e *env) interceptedClients(n int) []*client {
	cs := make([]*client, n)
	for i := range cs {
		cs[i] = e.intercepted()
	}
	return cs
}

// queueAll has each client wait behind the one before.
func queueAll(cs []*client, lock func(*client) acquire) []*attempt {
	var as []*attempt
	for _, c := range cs {
		as = append(as, c.queue(lock(c)))
	}
	return as
}

func mutexOf(name string) func(*client) acquire {
	return func(c *client) acquire { return c.Mutex(name).Lock }
}

// L5, "push, not poll": while nothing happens, waiters send no requests. Only renewals are allowed,
// and one look each time an entry ahead could have expired.
func testNoPolling(e *env) {
	const n, terms = 4, 2
	name := e.name()
	held := e.must(e.client().Mutex(name).Lock(e.ctx()))
	cs := e.interceptedClients(n)
	waiting := queueAll(cs, mutexOf(name))
	e.settle()
	before, served := asked(cs), e.ops()
	time.Sleep(terms * e.h.TTL) // a slow machine only makes the numbers smaller
	if d, most := asked(cs)-before, n*2*(terms+1); d > most {
		e.Errorf("%d waiters asked or were woken %d times in %d TTLs in which nothing happened; at most %d are understandable", n, d, terms, most)
	}
	// Each of n+1 sessions renews three times a TTL.
	if d, most := e.ops()-served, int64(n*2*(terms+1)+(n+1)*3*(terms+1)); d > most {
		e.Errorf("the store served %d requests in %d TTLs in which nothing happened; at most %d are understandable", d, terms, most)
	}
	e.release(held)
	ended := make(chan *attempt)
	for _, a := range waiting {
		go func() { <-a.done; ended <- a }()
	}
	for range waiting { // in any order in which the store serves them
		e.release((<-ended).lease())
	}
}

func (e *env) ops() int64 {
	if e.h.Ops == nil {
		return 0
	}
	return e.h.Ops()
}

// L5: a release wakes only the next waiter, never all.
func testNoHerd(e *env) {
	const n = 12
	name := e.name()
	held := e.must(e.client().Mutex(name).Lock(e.ctx()))
	cs := e.interceptedClients(n)
	waiting := queueAll(cs, mutexOf(name))
	e.settle()
	before := asked(cs)
	for _, a := range waiting {
		e.release(held)
		held = a.lease()
		e.settle() // waiters that were woken for nothing have asked by now
	}
	e.release(held)
	// Two for each: to be woken, and to ask. A herd makes n(n+1)/2 at least.
	if d, most := asked(cs)-before, 2*n+n/2; d > most {
		e.Errorf("%d releases woke or made ask %d times, at most %d are understandable", n, d, most)
	}
}

// L5: a waiter behind that gives up wakes no other.
func testQuitterWakesNobody(e *env) {
	name, began := e.name(), time.Now()
	held := e.must(e.client().Mutex(name).Lock(e.ctx()))
	cs := e.interceptedClients(6)
	waiting := queueAll(cs, mutexOf(name))
	quitter := e.client()
	e.settle()
	before := asked(cs)
	for range 6 {
		last := quitter.queue(quitter.Mutex(name).Lock)
		last.cancel()
		<-last.done
		e.eventually("the quitter's entry is gone", func() bool { return len(e.list(e.backend(), name)) == 7 })
		e.settle()
	}
	if d := asked(cs) - before; d > 6 {
		if time.Since(began) >= e.longTTL() && e.trial != nil {
			e.trial.tooSlow() // each waiter looks once when the entry ahead could have expired
		}
		e.Errorf("6 waiters behind gave up, and those ahead asked or were woken %d times", d)
	}
	e.release(held)
	for _, a := range waiting {
		e.release(a.lease())
	}
}

// L5: a release wakes one batch of readers, and not the writers and readers behind it.
func testBatchOnly(e *env) {
	name := e.name()
	held := e.must(e.client().RWMutex(name).Lock(e.ctx()))
	read := func(c *client) acquire { return c.RWMutex(name).RLock }
	batch, writers, behind := e.interceptedClients(4), e.interceptedClients(1), e.interceptedClients(6)
	readers := queueAll(batch, read)
	w := queueAll(writers, func(c *client) acquire { return c.RWMutex(name).Lock })
	late := queueAll(behind, read)
	e.settle()
	before := asked(behind) + asked(writers)
	e.release(held)
	for _, a := range readers {
		a.lease()
	}
	e.settle()
	if d := asked(behind) + asked(writers) - before; d > 2 {
		e.Errorf("those behind the batch asked or were woken %d times", d)
	}
	for _, a := range append(append(readers, w...), late...) {
		e.release(a.lease())
	}
}
