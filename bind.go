package hasp

import "context"

// Bind returns a context for work under the lease that ctx ends as well: it ends when ctx does,
// with ctx's cause, or when the lease is lost, with the *LostError as its cause, or released. It
// has the values and the deadline of ctx, and is known to hold the lock, as [Lease.Context] is. It
// is for work that something else than the lock may stop: a signal, a request that was cancelled, a
// time-out.
//
// Bind may be called any number of times, with contexts that are made after the lock was taken. It
// costs as much memory as other contexts do, until ctx or the lease ends. The context of a nil ctx
// has ended, with a cause that says so.
//
// Its own Err and Done ask the clocks, as those of [Lease.Context] do.
func (l *Lease) Bind(ctx context.Context) context.Context {
	work, _ := bind(ctx, l)
	return work
}

// Bind is [Lease.Bind] for several locks: the context also ends when any of them is lost or
// released, with that lease's error as its cause.
func (m *MultiLease) Bind(ctx context.Context) context.Context {
	work, _ := bind(ctx, m)
	return work
}

// anyLease is a *Lease or a *MultiLease.
type anyLease interface {
	holder
	Context() context.Context
	Err() error
	Release(ctx context.Context) error
}

// bind returns a context that ends with ctx, with the lease, or by cancel.
func bind(ctx context.Context, l anyLease) (_ context.Context, cancel context.CancelCauseFunc) {
	if ctx == nil {
		ctx = nilContext
	}
	work, cancel := context.WithCancelCause(context.WithValue(ctx, leaseKey{}, newBoundLeases(l, ctx)))
	// The lease's end comes by its context, which may be that of a leader, and last for months:
	// so what is registered there goes when the work has ended.
	stop := context.AfterFunc(l.Context(), func() { cancel(l.Err()) })
	context.AfterFunc(work, func() { stop() })
	return &workContext{work, func() {
		if err := l.Err(); err != nil {
			cancel(err)
		}
	}}, cancel
}
