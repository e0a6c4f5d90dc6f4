package hasp

import (
	"context"
	"errors"
	"fmt"
	"strings"
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

var errDoNil = fmt.Errorf("hasp: do: %w: the lock or the function is nil", ErrInvalidOption)

// do calls fn under what take returns, and releases that.
func do[L anyLease](ctx context.Context, take func(context.Context) (L, error), fn func(context.Context, L) error) (err error) {
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
