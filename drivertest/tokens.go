package drivertest

import (
	"math"
	"slices"

	"github.com/hasplock/hasp"
)

var tokenTests = slices.Concat(
	exclusively("Captured", nil, testTokenCaptured),
	needing(needsFencing, []test{
		{name: "AfterEmpty", run: testTokensAfterEmpty},
		{name: "Shared", needs: needsShared, run: testTokensOfReaders},
		{name: "AfterReopen", needs: needsReopen, solo: true, run: testTokensAfterReopen},
	}),
)

// grown demands that a token is greater than the last one of the name.
func (e *env) grown(l *hasp.Lease, last *uint64) {
	e.Helper()
	if t := l.Token(); t <= *last || t > math.MaxInt64 {
		e.violated("token %d after %d", t, *last)
	}
	*last = l.Token()
}

// S2: the token belongs to the grant, not to the moment of asking for it; a store that
// promises none gives none.
func testTokenCaptured(e *env, l *locker) {
	c := e.client()
	first := e.must(l.lock(c)(e.ctx()))
	token := first.Token()
	if (token > 0) != e.traits.Fencing {
		e.violated("token %d, with Fencing %t", token, e.traits.Fencing)
	}
	e.release(first)
	second := e.must(l.lock(c)(e.ctx()))
	if first.Token() != token {
		e.Errorf("the token of a released lease went from %d to %d", token, first.Token())
	}
	if e.traits.Fencing && second.Token() <= token {
		e.violated("token %d after %d", second.Token(), token)
	}
	e.release(second)
}

// S2: tokens grow although the queue was empty in between, the name was in use as another kind of
// lock, and its holders have gone for good.
func testTokensAfterEmpty(e *env) {
	b, name := e.backend(), e.name()
	last := uint64(0)
	for i := range 12 {
		c := e.client()
		lock := c.Mutex(name).Lock
		if i%3 == 1 && e.traits.Counting {
			lock = permits(c, name, 3, 2)
		}
		l := e.must(lock(e.ctx()))
		e.grown(l, &last)
		if i%2 == 0 {
			e.release(l)
		} else if err := c.Close(); err != nil {
			e.Fatalf("close: %v", err)
		}
		e.empty(b, name)
	}
}

// S2: concurrent holders have tokens in the order of their grants, and the next writer's is above
// them all.
func testTokensOfReaders(e *env) {
	name := e.name()
	last := uint64(0)
	var held []*hasp.Lease
	for _, c := range e.clients(4) {
		l := e.must(c.RWMutex(name).RLock(e.ctx()))
		e.grown(l, &last)
		held = append(held, l)
	}
	for _, l := range held {
		e.release(l)
	}
	w := e.must(e.client().RWMutex(name).Lock(e.ctx()))
	e.grown(w, &last)
	e.release(w)
}

// S2: tokens do not regress over a restart of the store, whether or not anything was held
// meanwhile.
func testTokensAfterReopen(e *env) {
	idle, used := e.name(), e.name()
	lastIdle, lastUsed := uint64(0), uint64(0)
	for range 3 {
		c := e.client()
		for range 3 {
			l := e.must(c.Mutex(idle).Lock(e.ctx()))
			e.grown(l, &lastIdle)
			e.release(l)
		}
		// Held over the restart, by a client that is then closed: the entry may or may not
		// have survived, the number must not come again.
		l := e.must(c.Mutex(used).Lock(e.ctx()))
		e.grown(l, &lastUsed)
		e.h.Reopen(e)
		_ = c.Close() // its connection may have died with the store
	}
	c := e.client()
	for name, last := range map[string]*uint64{idle: &lastIdle, used: &lastUsed} {
		l := e.must(c.Mutex(name).Lock(e.ctx()))
		e.grown(l, last)
		e.release(l)
	}
}
