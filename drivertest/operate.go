package drivertest

import (
	"context"
	"errors"
	"time"

	"github.com/hasplock/hasp"
)

// The actions of operators, beside evicting.
var operateTests = []test{
	{name: "Deadlock", needs: both(needsFIFO, needsNames), solo: true, run: testDeadlockFound},
	{name: "DeadlockFails", needs: both(needsFIFO, needsNames), solo: true, run: testDeadlockFails},
	{name: "Follow", run: testFollow},
	{name: "Asked", needs: needsFIFO, run: testAsked},
}

// crossed makes two clients hold a lock each and wait for the other's.
func (e *env) crossed(opts ...hasp.LockOption) (names []string, leases []*hasp.Lease, wants []*attempt) {
	e.Helper()
	names = e.names(2)
	cs := e.clients(2)
	for i, c := range cs {
		leases = append(leases, e.must(c.Mutex(names[i]).Lock(e.ctx())))
	}
	for i, c := range cs {
		wants = append(wants, c.queue(func(ctx context.Context) (*hasp.Lease, error) {
			work, cancel := context.WithCancel(leases[i].Context())
			defer cancel()
			defer context.AfterFunc(ctx, cancel)()
			return c.Mutex(names[1-i], opts...).Lock(work)
		}))
	}
	return names, leases, wants
}

// Every client that can read the queues finds the cycle, with its members.
func testDeadlockFound(e *env) {
	names, leases, _ := e.crossed()
	found, err := e.client().Deadlocks(e.ctx())
	if e.once(err) != nil {
		e.Fatalf("deadlocks: %v", err)
	}
	// Other tests share the store.
	var ours []hasp.Deadlock
	for _, d := range found {
		if d.Waits[0].Name == names[0] || d.Waits[0].Name == names[1] {
			ours = append(ours, d)
		}
	}
	if len(ours) != 1 || len(ours[0].Waits) != 2 || !ours[0].Certain {
		e.Fatalf("found %+v", ours)
	}
	for _, w := range ours[0].Waits {
		holder := leases[0]
		if w.Name == names[1] {
			holder = leases[1]
		}
		if w.On.ID != holder.ID() {
			e.Errorf("%q is said to be held by %q, it is by %q", w.Name, w.On.ID, holder.ID())
		}
	}
	e.release(leases[0])
}

// One of the two gives up, and the other gets its lock.
func testDeadlockFails(e *env) {
	_, leases, wants := e.crossed(hasp.FailOnDeadlock(100 * time.Millisecond))
	loser := 0
	select {
	case <-wants[0].done:
	case <-wants[1].done:
		loser = 1
	case <-e.ctx().Done():
		e.Fatal("both still wait")
	}
	winner := 1 - loser
	e.wantErr("the youngest", wants[loser].err, hasp.ErrDeadlock)
	if errors.Is(wants[loser].err, context.Canceled) {
		e.Errorf("%v: it was not cancelled", wants[loser].err)
	}
	e.release(leases[loser])
	e.release(wants[winner].lease())
	e.release(leases[winner])
}

// A client that follows a name, on any store, sees its holder, and when it is free again.
func testFollow(e *env) {
	name, c, onlooker := e.name(), e.client(), e.client()
	ctx, cancel := context.WithCancel(e.ctx())
	defer cancel()
	var held *hasp.Lease
	var last hasp.Queue
	await := "the free lock as it is at first"
	for q, err := range onlooker.Follow(ctx, name) {
		switch {
		case err != nil:
			e.Fatalf("awaited %s without success: %v; last seen was %+v", await, err, last)
		case held == nil && len(q.Holders) == 0:
			held = e.must(c.Mutex(name).Lock(e.ctx()))
			await = "the holder " + held.ID()
		case held == nil:
			e.Fatalf("seen before anybody held: %+v", q)
		case len(q.Holders) == 1 && held.Held():
			if q.Holders[0].ID != held.ID() {
				e.Errorf("held by %q, seen is %q", held.ID(), q.Holders[0].ID)
			}
			e.release(held)
			await = "the release"
		case len(q.Holders) == 0 && !held.Held():
			return
		}
		last = q
	}
	e.Fatalf("following ended before %s was seen; last seen was %+v", await, last)
}

// The holder receives the request, and who makes it.
func testAsked(e *env) {
	name, c, other := e.name(), e.client(), e.client()
	asked := make(chan hasp.Owner, 1)
	l := e.must(c.Mutex(name, hasp.Revocable(0, func(by hasp.Owner) { asked <- by })).Lock(e.ctx()))
	next := other.queue(other.Mutex(name, hasp.AskHolder("the deploy cannot wait"), hasp.Note("deploy")).Lock)
	select {
	case by := <-asked:
		if by.Asks != "the deploy cannot wait" || by.Note != "deploy" {
			e.Errorf("asked by %+v", by)
		}
	case <-e.ctx().Done():
		e.Fatalf("the holder was never asked, for which %s is enough", e.patience())
	}
	e.release(l)
	e.release(next.lease())
}
