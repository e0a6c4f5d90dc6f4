package hasp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Locker is a lock that [LockAll] can take: a [*Mutex], the writer's side of an
// [*RWMutex], its reader's side ([RWMutex.RLocker]), or permits of a semaphore
// ([Semaphore.Locker]).
type Locker interface {
	Lock(ctx context.Context) (*Lease, error)
	TryLock(ctx context.Context) (*Lease, error)

	part() part
}

// part says which lock a Locker is, for the order and to find one that is named twice.
type part struct {
	Locker
	store, name     string
	units, capacity int64
	err             error // of its name and options
}

func (p part) compare(o part) int {
	return cmp.Or(cmp.Compare(p.store, o.store), cmp.Compare(p.name, o.name))
}

func (c *Client) part(l Locker, h *handle, units int64, err error) part {
	return part{l, c.backend.String(), h.name, units, h.capacity, cmp.Or(err, ValidateName(h.name))}
}

// LockAll waits until it holds all the locks, or none: if it fails, whatever it had is
// given back. It takes them one after the other in the order of their stores and names, so
// that two calls never wait for each other, whatever order they were given. Different
// kinds, stores and clients may be mixed. A lock named as reader and as writer is taken
// as writer. Locks that are lost again while LockAll waits for the others are taken anew.
//
// ctx bounds the waiting only. The errors are those of [Mutex.Lock]; a context that holds
// one of the locks already gets ErrDeadlock (but see [Reentrant]).
func LockAll(ctx context.Context, locks ...Locker) (*MultiLease, error) {
	for {
		m, again, err := lockAll(ctx, locks, Locker.Lock)
		if err == nil || !again {
			return m, err
		}
	}
}

// TryLockAll returns all the locks if all are free, and otherwise an error wrapping
// ErrBusy that names the one that is not. For a moment others may find some of them taken
// nevertheless. See [Mutex.TryLock].
func TryLockAll(ctx context.Context, locks ...Locker) (*MultiLease, error) {
	m, _, err := lockAll(ctx, locks, Locker.TryLock)
	return m, err
}

// lockAll makes one attempt. again says that it failed for the loss of a lock that it had
// already.
func lockAll(ctx context.Context, locks []Locker, take func(Locker, context.Context) (*Lease, error)) (_ *MultiLease, again bool, err error) {
	parts, err := inOrder(ctx, locks)
	if err != nil {
		return nil, false, fmt.Errorf("hasp: lock all: %w", err)
	}
	m := &MultiLease{}
	for _, p := range parts {
		if err := m.take(ctx, p, take); err != nil {
			again = ctx.Err() == nil && errors.Is(m.Err(), ErrLost)
			m.giveBack()
			return nil, again, err
		}
	}
	return m, false, nil
}

// inOrder sorts the locks and leaves each once.
func inOrder(ctx context.Context, locks []Locker) ([]part, error) {
	if ctx == nil {
		return nil, errNilContext
	}
	if len(locks) == 0 {
		return nil, fmt.Errorf("%w: no lock is named", ErrInvalidOption)
	}
	var parts []part
	for _, l := range locks {
		if l == nil {
			return nil, fmt.Errorf("%w: a lock is nil", ErrInvalidOption)
		}
		p := l.part()
		if p.err != nil {
			return nil, fmt.Errorf("lock %q at %s: %w", p.name, p.store, p.err)
		}
		i, found := slices.BinarySearchFunc(parts, p, part.compare)
		switch {
		case !found:
			parts = slices.Insert(parts, i, p)
		case p.capacity != driver.Whole || parts[i].capacity != driver.Whole:
			return nil, fmt.Errorf("%w: the semaphore %q is named twice", ErrInvalidOption, p.name)
		case p.units > parts[i].units:
			parts[i] = p // the writer's side
		}
	}
	return parts, nil
}

// MultiLease is what LockAll returns: several leases with one loss. If one of its locks is
// lost, it is lost as a whole; the others stay held until Release, so that the work under
// them can end in order. Its methods may be called at once from many goroutines.
type MultiLease struct {
	leases []*Lease // in the order taken; complete before anybody else sees it

	mu     sync.Mutex
	ctx    context.Context
	endCtx context.CancelCauseFunc
	lost   chan struct{}
}

// take adds one lock. It waits with the caller's context, which here ends as well with the
// loss of a lock taken before, and is known to hold them.
func (m *MultiLease) take(ctx context.Context, p part, take func(Locker, context.Context) (*Lease, error)) error {
	if n := len(m.leases); n > 0 {
		held, cancel := context.WithCancelCause(context.WithValue(ctx, leaseKey{}, m.leases[n-1]))
		defer cancel(nil)
		for _, l := range m.leases {
			defer context.AfterFunc(l.Context(), func() { cancel(l.Err()) })()
		}
		ctx = held
	}
	l, err := take(p.Locker, ctx)
	if err != nil {
		return err
	}
	m.leases = append(m.leases, l)
	return nil
}

// giveBack releases what an attempt had, without keeping its caller waiting.
func (m *MultiLease) giveBack() {
	for _, l := range m.leases {
		c := l.entry.session.client
		c.inBackground(func() { _ = l.Release(c.background) })
	}
}

// Leases returns the leases of the single locks, in the order in which they were taken:
// for their names and tokens. Release them together.
func (m *MultiLease) Leases() []*Lease { return slices.Clone(m.leases) }

// Token returns the fencing token of one of the locks; 0 if it is not among them or its
// store has none. Each name has tokens of its own. See [Lease.Token].
func (m *MultiLease) Token(name string) uint64 {
	for _, l := range m.leases {
		if l.Name() == name {
			return l.Token()
		}
	}
	return 0
}

// Held reports whether all the locks may be relied on at this moment. See [Lease.Held].
func (m *MultiLease) Held() bool {
	if m == nil {
		return false
	}
	for _, l := range m.leases {
		if !l.Held() {
			return false
		}
	}
	return true
}

// Deadline returns when Held ends if nothing is renewed from now on: the earliest of all.
func (m *MultiLease) Deadline() time.Time {
	var first time.Time
	for _, l := range m.leases {
		if at := l.Deadline(); !at.IsZero() && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first
}

// Err returns nil while all are held, the *LostError of the first found lost, or an error
// wrapping ErrNotHeld after the release.
func (m *MultiLease) Err() error {
	var first error
	for _, l := range m.leases {
		err := l.Err()
		if errors.Is(err, ErrLost) {
			return err
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// Context returns the context for the work under the locks. It ends when any of them is
// lost or released, with that lease's error as its cause. See [Lease.Context].
func (m *MultiLease) Context() context.Context {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ctx == nil {
		last := m.leases[len(m.leases)-1]
		m.ctx, m.endCtx = context.WithCancelCause(last.Context())
		for _, l := range m.leases[:len(m.leases)-1] {
			context.AfterFunc(l.Context(), func() { m.endCtx(l.Err()) })
		}
	}
	return m.ctx
}

// Lost returns a channel that is closed when the first of the locks is lost. See
// [Lease.Lost].
func (m *MultiLease) Lost() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lost == nil {
		m.lost = make(chan struct{})
		var once sync.Once
		for _, l := range m.leases {
			context.AfterFunc(l.Context(), func() {
				if errors.Is(l.Err(), ErrLost) {
					once.Do(func() { close(m.lost) })
				}
			})
		}
	}
	return m.lost
}

// Release gives all the locks back, at the same time. nil says that all were valid to the
// end and that the stores have confirmed that they are gone; otherwise the error joins
// those of the locks concerned. See [Lease.Release].
func (m *MultiLease) Release(ctx context.Context) error {
	if m == nil {
		return (*Lease)(nil).Release(ctx)
	}
	errs := make([]error, len(m.leases))
	var all sync.WaitGroup
	for i, l := range m.leases {
		all.Go(func() { errs[i] = l.Release(ctx) })
	}
	all.Wait()
	return errors.Join(errs...)
}
