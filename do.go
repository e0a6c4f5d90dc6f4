package hasp

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Do runs fn under the mutex called name. See the function [Do].
func (c *Client) Do(ctx context.Context, name string, fn func(ctx context.Context) error, opts ...LockOption) error {
	return Do(ctx, c.Mutex(name, opts...), fn)
}

// Do runs fn under a lock and returns its error: under a mutex, a writer's lock, a reader's
// ([RWMutex.RLocker]) or permits ([Semaphore.Locker]). It waits for the lock as [Mutex.Lock] does,
// and returns that error without calling fn if there is none to be had.
//
// fn's context is that of [Lease.Bind]: it ends when ctx does, or when the lock is lost, with the
// *LostError as its cause; [LeaseFrom] returns the lease that it was made from, for its token. If
// the lock was lost before fn returned, or its release could not be confirmed, the error wraps
// ErrLost or ErrUnknown as well, also if fn returned nil. The lock is released if fn panics.
func Do(ctx context.Context, l Locker, fn func(ctx context.Context) error) error {
	if l == nil || fn == nil {
		return errDoNil
	}
	return do(ctx, l.Lock, func(ctx context.Context, _ *Lease) error { return fn(ctx) })
}

// DoAll runs fn under all the locks. It waits for them as [LockAll] does; the rest is as with [Do],
// but that the leases come as an argument, and the loss of any of them ends fn's context.
func DoAll(ctx context.Context, locks []Locker, fn func(ctx context.Context, leases *MultiLease) error) error {
	if fn == nil {
		return errDoNil
	}
	return do(ctx, func(ctx context.Context) (*MultiLease, error) { return LockAll(ctx, locks...) }, fn)
}

var errDoNil = fmt.Errorf("hasp: do: %w: the lock or the function is nil", ErrInvalid)

// do calls fn under what take returns, and releases that.
func do[L Hold](ctx context.Context, take func(context.Context) (L, error), fn func(context.Context, L) error) (err error) {
	l, err := take(ctx)
	if err != nil {
		return err
	}
	work, cancel := bind(ctx, l)
	defer func() {
		cancel(nil)
		// ctx may have ended; the release must not end with it. The lease's own deadline
		// bounds it.
		if rerr := l.Release(context.WithoutCancel(ctx)); rerr != nil {
			if errors.Is(rerr, ErrNotHeld) {
				rerr = fmt.Errorf("the function released it itself: %w", rerr)
			}
			// fn may have returned the loss itself, as context.Cause: once is enough.
			if !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), rerr.Error()) {
				err = errors.Join(err, rerr)
			}
		}
	}()
	return fn(work, l)
}

// Bind and Context are two, since only the caller knows which context is to end the work: a handler
// of an HTTP server works under a lease that was taken long before its request, and a leader works
// longer than the call that made it one. Rejected: ending the lease's context with the one given to
// Lock (a time-out for the waiting would end the work); asking for a second context in Lock. A
// bound context copies the leases of ctx: a search through both contexts would take twice as long
// with each nested call.

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

// Hold has the methods that a [Lease] and a [MultiLease] share, for code that works under either. A
// [Term] and a [Slot] are leases. Only this package implements it.
type Hold interface {
	Held() bool
	Err() error
	Deadline() time.Time
	Context() context.Context
	Bind(ctx context.Context) context.Context
	Release(ctx context.Context) error
	Unlock()
	holder
}

// bind returns a context that ends with ctx, with the lease, or by cancel.
func bind(ctx context.Context, l Hold) (_ context.Context, cancel context.CancelCauseFunc) {
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
