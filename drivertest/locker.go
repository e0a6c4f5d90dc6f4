package drivertest

import (
	"context"
	"slices"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// locker is one of the forms of an exclusive lock. The same tests run with each: they share one
// queue in the store, and must behave the same in every respect.
type locker struct {
	name     string
	standing []*hasp.Lease // the entries in front in any case

	lock func(*client) acquire
	try  func(*client) acquire // nil: the form has no try
}

type acquire = func(context.Context) (*hasp.Lease, error)

// exclusively makes a test of each form.
func exclusively(name string, needs func(*env) string, run func(*env, *locker)) []test {
	if needs == nil {
		needs = func(*env) string { return "" }
	}
	return []test{
		{name: name + "/mutex", needs: needs, run: func(e *env) { run(e, e.mutex()) }},
		{name: name + "/writer", needs: needs, run: func(e *env) { run(e, e.writer()) }},
		{name: name + "/election", needs: both(needs, needsValues), run: func(e *env) { run(e, e.campaign()) }},
		{name: name + "/drained", needs: both(needs, needsCounting), run: func(e *env) { run(e, e.drained()) }},
	}
}

func (e *env) mutex() *locker {
	name := e.name()
	return &locker{
		name: name,
		lock: func(c *client) acquire { return c.Mutex(name).Lock },
		try:  func(c *client) acquire { return c.Mutex(name).TryLock },
	}
}

func (e *env) writer() *locker {
	name := e.name()
	return &locker{
		name: name,
		lock: func(c *client) acquire { return c.RWMutex(name).Lock },
		try:  func(c *client) acquire { return c.RWMutex(name).TryLock },
	}
}

func (e *env) campaign() *locker {
	name := e.name()
	return &locker{
		name: name,
		lock: func(c *client) acquire {
			return func(ctx context.Context) (*hasp.Lease, error) {
				term, err := c.Election(name).Campaign(ctx, []byte("value"))
				if err != nil {
					return nil, err
				}
				return term.Lease, nil
			}
		},
	}
}

// drained is a semaphore of 5 with 4 permits taken for the whole of the test: the fifth
// is a mutex, behind several holders instead of one.
func (e *env) drained() *locker {
	name, drain := e.name(), e.clientOn(e.h.Open(e), nil, 3*e.longTTL())
	l := &locker{name: name}
	for _, k := range []int64{1, 2, 1} {
		l.standing = append(l.standing, e.must(drain.Semaphore(name, 5).Acquire(e.ctx(), k)))
	}
	l.lock = func(c *client) acquire {
		return func(ctx context.Context) (*hasp.Lease, error) { return c.Semaphore(name, 5).Acquire(ctx, 1) }
	}
	l.try = func(c *client) acquire {
		return func(ctx context.Context) (*hasp.Lease, error) { return c.Semaphore(name, 5).TryAcquire(ctx, 1) }
	}
	return l
}

// steady ends the test if an entry in front has been lost, as it may on a machine that stops for
// longer than its TTL: then several may rightly hold.
func (l *locker) steady(e *env) {
	e.Helper()
	for _, d := range l.standing {
		if !d.Held() {
			e.Fatalf("what drains the semaphore was lost, and this has tested nothing: %v", d.Err())
		}
	}
}

// left waits until n entries are left besides the standing ones: cleaning up runs in the background
// (L4).
func (l *locker) left(e *env, b driver.Backend, n int) {
	e.Helper()
	l.steady(e)
	var front []string
	for _, d := range l.standing {
		front = append(front, d.ID())
	}
	if !e.traits.FIFO {
		n = min(n, 1) // a waiter has no entry in a queue
	}
	e.eventually("the entries that were given up are gone", func() bool {
		return len(e.list(b, l.name)) == len(front)+n
	})
	if got := ids(e.list(b, l.name)); len(got) < len(front) || !slices.Equal(got[:len(front)], front) {
		e.Errorf("in front stand %v, want %v", got, front)
	}
}
