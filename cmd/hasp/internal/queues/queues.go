// Package queues reads all queues of a store, and stands in one, for the verbs of hasp and the page of
// hasp serve.
package queues

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"golang.org/x/sync/errgroup"
)

// atOnce is how many queues are read at the same time.
const atOnce = 8

// Names lists the names that begin with a prefix. It may take longer than bound where there are
// many, or many that are remembered and not held, as long as the store answers.
func Names(ctx context.Context, c *hasp.Client, prefix string, bound time.Duration) (names []string, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(bound, func() { cancel(context.DeadlineExceeded) })
	defer silent.Stop()
	ctx = driver.WithProgress(ctx, func() { silent.Reset(bound) })
	for name, err := range c.Names(ctx, prefix) {
		if err != nil && context.Cause(ctx) == context.DeadlineExceeded {
			return nil, fmt.Errorf("list the names: the store has not answered for %s: %w", bound, err)
		}
		if err != nil {
			return nil, err
		}
		silent.Reset(bound)
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Read reads the queues of names, in any order, and calls got with each as it comes, from several
// goroutines. bound is for one answer: a store with thousands of names is not out of reach because
// all of them take long. It ends when one queue cannot be read: a store that is away is not asked a
// thousand times.
func Read(ctx context.Context, c *hasp.Client, names []string, bound time.Duration, got func(i int, q hasp.Queue)) error {
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(atOnce)
	for i, name := range names {
		all.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			ctx, cancel := context.WithTimeout(ctx, bound)
			defer cancel()
			q, err := c.Inspect(ctx, name)
			if err == nil {
				got(i, q)
			}
			return err
		})
	}
	return all.Wait()
}

// All reads the queues of the names that begin with a prefix, in the order of the names. The
// answers are of different moments; names that have been released since are left out.
func All(ctx context.Context, c *hasp.Client, prefix string, bound time.Duration) ([]hasp.Queue, error) {
	names, err := Names(ctx, c, prefix, bound)
	if err != nil {
		return nil, err
	}
	all := make([]hasp.Queue, len(names))
	err = Read(ctx, c, names, bound, func(i int, q hasp.Queue) { all[i] = q })
	return slices.DeleteFunc(all, func(q hasp.Queue) bool { return len(q.Holders)+len(q.Waiters) == 0 }), err
}

// Lock locks the whole of a lock that is in use, of any kind.
func Lock(ctx context.Context, c *hasp.Client, q hasp.Queue, opts ...hasp.LockOption) (*hasp.Lease, error) {
	if n := append(q.Holders, q.Waiters...)[0].Capacity; n != driver.Whole {
		return c.Semaphore(q.Name, n, opts...).Acquire(ctx, n)
	}
	return c.Mutex(q.Name, opts...).Lock(ctx)
}
