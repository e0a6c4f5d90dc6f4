package hasp

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// MultiLease has the leases of a LockAll: several leases with one loss. If one of its locks is
// lost, it is lost as a whole; the others stay held until Release, so that the work under
// them can end in order. Its methods may be called at once from many goroutines.
type MultiLease struct {
	taken  *takenLeases
	leases []*Lease // in the order taken

	mu  sync.Mutex
	ctx context.Context
}

// giveBack releases what an attempt had, without keeping its caller waiting.
func (m *MultiLease) giveBack() {
	for _, l := range m.leases {
		l.entry.session.client.releaseUnwanted(l)
	}
}

// Leases returns the leases of the single locks, in the order in which they were taken:
// for their names and tokens. Release them together.
func (m *MultiLease) Leases() []*Lease { return slices.Clone(m.leases) }

// Token returns the fencing token of one of the locks; 0 if it is not among them or its
// store has none. Each name has its own tokens. See [Lease.Token].
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

// Context returns the context for the work under the locks. It ends when any of them is lost or
// released, with that lease's error as its cause. See [Lease.Context], and [MultiLease.Bind] for
// work that another context ends as well.
func (m *MultiLease) Context() context.Context {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ctx == nil {
		ctx, end := context.WithCancelCause(context.WithValue(context.WithoutCancel(m.taken.ctx), leaseKey{}, m))
		m.ctx = &workContext{ctx, func() {
			if err := m.Err(); err != nil {
				end(err)
			}
		}}
		for _, l := range m.leases {
			context.AfterFunc(l.Context(), func() { end(l.Err()) })
		}
	}
	return m.ctx
}

// Release gives all the locks back, at the same time. nil says that all were valid to the
// end and that the stores have confirmed that they are gone; otherwise the error joins
// those of the locks concerned. See [Lease.Release].
func (m *MultiLease) Release(ctx context.Context) error {
	if m == nil {
		return (*Lease)(nil).Release(ctx)
	}
	return m.together(func(l *Lease) error { return l.Release(ctx) })
}

// together does something to each lease at the same time.
func (m *MultiLease) together(release func(*Lease) error) error {
	errs := make([]error, len(m.leases))
	var all sync.WaitGroup
	for i, l := range m.leases {
		all.Go(func() { errs[i] = release(l) })
	}
	all.Wait()
	return errors.Join(errs...)
}
