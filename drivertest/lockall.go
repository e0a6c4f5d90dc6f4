package drivertest

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/hasplock/hasp"
)

var lockAllTests = []test{
	{name: "Together", run: testLockAll},
	{name: "Mixed", needs: both(needsShared, needsCounting), run: testLockAllMixed},
	{name: "Nothing", run: testLockAllNothing},
	{name: "Crosswise", run: testLockAllCrosswise},
	{name: "Lost", needs: needsEvicter, run: testLockAllLost},
}

// names makes n names.
func (e *env) names(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = e.name()
	}
	return names
}

func mutexes(c *client, names []string) []hasp.Locker {
	var locks []hasp.Locker
	for _, name := range names {
		locks = append(locks, c.Mutex(name))
	}
	return locks
}

// All are held, and all are free again.
func testLockAll(e *env) {
	b, names, c, other := e.backend(), e.names(3), e.client(), e.client()
	m, err := hasp.LockAll(e.ctx(), mutexes(c, names)...)
	if err != nil {
		e.Fatalf("lock all: %v", err)
	}
	if !m.Held() {
		e.Errorf("not held: %v", m.Err())
	}
	for _, name := range names {
		if e.traits.Fencing && m.Token(name) == 0 {
			e.Errorf("%q has no token", name)
		}
		_, err := other.Mutex(name).TryLock(e.ctx())
		e.wantErr("try of one of them", err, hasp.ErrBusy)
	}
	if err := m.Release(e.ctx()); err != nil {
		e.Fatalf("release: %v", err)
	}
	for _, name := range names {
		e.empty(b, name)
	}
}

// Readers, writers and permits in one; what can be shared is shared.
func testLockAllMixed(e *env) {
	names, c, other := e.names(3), e.client(), e.client()
	locks := func(c *client) []hasp.Locker {
		return []hasp.Locker{c.RWMutex(names[0]).RLocker(), c.Semaphore(names[1], 4).Locker(2)}
	}
	one, err := hasp.LockAll(e.ctx(), append(locks(c), c.Mutex(names[2]))...)
	if err != nil {
		e.Fatalf("lock all: %v", err)
	}
	two, err := hasp.TryLockAll(e.ctx(), locks(other)...)
	if err != nil {
		e.Fatalf("what can be shared: %v", err)
	}
	_, err = other.RWMutex(names[0]).TryLock(e.ctx())
	e.wantErr("a writer beside readers", err, hasp.ErrBusy)
	_, err = other.Semaphore(names[1], 4).TryAcquire(e.ctx(), 1)
	e.wantErr("a fifth permit", err, hasp.ErrBusy)
	for _, m := range []*hasp.MultiLease{one, two} {
		if err := m.Release(e.ctx()); err != nil {
			e.Errorf("release: %v", err)
		}
	}
}

// All or nothing: neither a try nor a wait that ends leaves anything in the store (L4).
func testLockAllNothing(e *env) {
	b, names, c, other := e.backend(), e.names(3), e.client(), e.client()
	held := e.must(other.Mutex(names[1]).Lock(e.ctx()))
	_, err := hasp.TryLockAll(e.ctx(), mutexes(c, names)...)
	e.wantErr("try", err, hasp.ErrBusy)
	e.empty(b, names[0])

	ctx, cancel := context.WithCancel(e.ctx())
	waiting := make(chan error, 1)
	go func() {
		_, err := hasp.LockAll(ctx, mutexes(c, names)...)
		waiting <- err
	}()
	c.await(hasp.EventWaiting, 1)
	began := time.Now()
	cancel()
	e.wantErr("cancelled", <-waiting, context.Canceled)
	if took := time.Since(began); took > e.limit(250*time.Millisecond) {
		e.Errorf("L3: returned %s after the cancel", took)
	}
	e.empty(b, names[0])
	e.empty(b, names[2])
	e.release(held)
	e.empty(b, names[1])
}

// Two that want the same locks in opposite order never wait for each other (L2), and everything
// that they protect is theirs alone (S1).
func testLockAllCrosswise(e *env) {
	names, f := e.names(3), new(fragile)
	done := make(chan error)
	for _, c := range e.clients(3) {
		go func() {
			for range 5 {
				locks := mutexes(c, names)
				rand.Shuffle(len(locks), func(i, j int) { locks[i], locks[j] = locks[j], locks[i] })
				m, err := hasp.LockAll(e.ctx(), locks...)
				if err == nil {
					f.use()
					err = m.Release(e.ctx())
				}
				if err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range 3 {
		if err := <-done; err != nil {
			e.Error(err)
		}
	}
	e.exclusive(f)
}

// The loss of one is the loss of all; the rest goes with the release.
func testLockAllLost(e *env) {
	b, names, c := e.backend(), e.names(3), e.shortLived()
	m, err := hasp.LockAll(e.ctx(), mutexes(c, names)...)
	if err != nil {
		e.Fatalf("lock all: %v", err)
	}
	work, one := m.Context(), m.Leases()[1]
	if err := e.evict(b, one.Name(), one.ID()); err != nil {
		e.Fatalf("evict: %v", err)
	}
	select {
	case <-work.Done():
	case <-e.ctx().Done():
		e.Fatal("the holder of all was never told of the loss of one")
	}
	e.wantErr("cause", context.Cause(work), hasp.ErrLost)
	if m.Held() {
		e.Error("held without one of its locks")
	}
	e.wantErr("release", m.Release(e.ctx()), hasp.ErrLost)
	for _, name := range names {
		e.empty(b, name)
	}
}
