package programs

import (
	"context"
	"errors"
	"fmt"

	"github.com/hasplock/hasp"
)

// hasScope reports operations that can also be done by a method that takes a function.
func (o Op) hasScope() bool {
	switch o {
	case Lock, RLock, Acquire, Campaign, LockAll, Pool:
		return true
	}
	return false
}

// scope is a function that runs under a lock.
type scope struct {
	work  context.Context
	end   chan struct{} // closed by the one who gives the hold up
	ended chan error    // what the method that has called the function returned
}

// leave has the function return, and returns what came of the release.
func (s *scope) leave() error {
	close(s.end)
	return <-s.ended
}

// errServed is returned by the function of Run, and so by Run: a nil would begin another term.
var errServed = errors.New("the program has given the term up")

// scoped is call by the methods that take a function.
func (r *run) scoped(a *acquisition, i int) func(context.Context) (*hold, error) {
	value := fmt.Sprintf("campaign of step %d", i)
	do := r.method(a, value)
	return func(ctx context.Context) (*hold, error) {
		var h *hold
		err := do(ctx, func(work context.Context, term *hasp.Term, multi *hasp.MultiLease) error {
			h = &hold{term: term, scope: &scope{work, make(chan struct{}), make(chan error, 1)}}
			switch {
			case term != nil:
				h.lease, h.value = term.Lease, value
			case a.step.Do == LockAll:
				h.multi = multi
			default:
				h.lease, _ = hasp.LeaseFrom(work)
			}
			r.returned(a, h, nil)
			return r.serve(h)
		})
		if h == nil {
			return &hold{}, err
		}
		h.scope.ended <- err
		return nil, nil
	}
}

// method is the one for the step, which has no term but in Run. It sets the acquisition's claims.
func (r *run) method(a *acquisition, value string) func(context.Context, func(context.Context, *hasp.Term, *hasp.MultiLease) error) error {
	s, c, name, opts := a.step, a.machine.client, r.name(a.step.Name), r.options(a)
	capacity := r.capacity(s.Name)
	units := capacity
	var lock hasp.Locker
	var locks []hasp.Locker
	var pool *hasp.Pool
	switch s.Do {
	case Lock:
		lock = c.Mutex(name, opts...)
	case RLock:
		units, lock = 1, c.RWMutex(name, opts...).RLocker()
	case Acquire:
		units = (s.Units-1)%capacity + 1
		lock = c.Semaphore(name, capacity, opts...).Locker(units)
	case LockAll:
		locks = r.several(a) // which sets the claims
	case Pool:
		pool = r.pool(a) // the same
	}
	if len(a.claims) == 0 {
		a.claims = []claim{{a.machine.Store, s.Name, units, capacity}}
	}
	return func(ctx context.Context, fn func(context.Context, *hasp.Term, *hasp.MultiLease) error) error {
		switch s.Do {
		case Campaign:
			return c.Election(name, opts...).Run(ctx, []byte(value), func(ctx context.Context, t *hasp.Term) error { return fn(ctx, t, nil) })
		case LockAll:
			return hasp.DoAll(ctx, locks, func(ctx context.Context, m *hasp.MultiLease) error { return fn(ctx, nil, m) })
		case Pool:
			return pool.Do(ctx, func(ctx context.Context, _ *hasp.Slot) error { return fn(ctx, nil, nil) })
		default:
			return hasp.Do(ctx, lock, func(ctx context.Context) error { return fn(ctx, nil, nil) })
		}
	}
}

// serve is the function: it returns when the hold is given up, or its context ends.
func (r *run) serve(h *hold) error {
	select {
	case <-h.scope.end:
	case <-h.scope.work.Done():
		r.mu.Lock()
		h.over = true
		r.mu.Unlock()
	}
	if h.term == nil {
		return nil
	}
	// After a loss Run would stand again: one term is enough for a step.
	h.cancel()
	return errServed
}

// unheard is told what Run cannot return. Faults are expected here.
type unheard struct{}

func (unheard) Observe(hasp.Event) {}
