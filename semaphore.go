package hasp

import (
	"context"
	"fmt"

	"github.com/hasplock/hasp/driver"
)

// Semaphore hands out at most n permits of a name. All clients must agree on n: one that
// asks with another n gets ErrMismatch while entries exist. Requests are served in order,
// also large ones: those behind a request for many permits wait with it, so it cannot
// starve.
//
// Like a Mutex it is only a handle; a [Lease] owns the permits it was acquired with and
// releases them together.
type Semaphore struct {
	client *Client
	handle handle
	n      int64
}

// Semaphore returns the handle of the semaphore called name with n permits. A wrong n is
// reported by the first use, as is a store without Traits().Counting.
func (c *Client) Semaphore(name string, n int64, opts ...LockOption) *Semaphore {
	return &Semaphore{c, c.handle(name, n, opts), n}
}

// Acquire waits for k permits at once. See [Mutex.Lock].
func (s *Semaphore) Acquire(ctx context.Context, k int64) (*Lease, error) {
	return s.client.acquire(ctx, s.handle.ask("acquire", k), s.check(k))
}

// TryAcquire tries to get k permits at once. See [Mutex.TryLock].
func (s *Semaphore) TryAcquire(ctx context.Context, k int64) (*Lease, error) {
	return s.client.acquire(ctx, s.handle.try("try to acquire", k), s.check(k))
}

// Locker returns k permits of the semaphore as a lock, for [Do] and [LockAll].
func (s *Semaphore) Locker(k int64) Locker { return permits{s, k} }

type permits struct {
	s *Semaphore
	k int64
}

func (p permits) Lock(ctx context.Context) (*Lease, error)    { return p.s.Acquire(ctx, p.k) }
func (p permits) TryLock(ctx context.Context) (*Lease, error) { return p.s.TryAcquire(ctx, p.k) }
func (p permits) part() part                                  { return p.s.client.part(p, &p.s.handle, p.k, p.s.check(p.k)) }

func (s *Semaphore) check(k int64) error {
	switch {
	case s.n < 1 || s.n >= driver.Whole:
		return fmt.Errorf("%w: a semaphore has 1 to %d permits, not %d", ErrInvalid, driver.Whole-1, s.n)
	case k < 1 || k > s.n:
		return fmt.Errorf("%w: %d permits of %d cannot be acquired", ErrInvalid, k, s.n)
	case !s.client.traits.Counting:
		return fmt.Errorf("%w: it has no semaphores", ErrUnsupported)
	}
	return s.handle.err
}
