package gocronhasp

import (
	"context"

	"github.com/go-co-op/gocron/v2"

	"github.com/hasplock/hasp"
)

// Locker takes the lock of each job for each of its runs. Safe for use by many goroutines.
type Locker struct {
	client *hasp.Client
	prefix string
	opts   []hasp.LockOption
}

// NewLocker returns a gocron.Locker. The lock of a job is "gocron/" and the job's name
// (gocron.WithName; without it the function's name, which changes when the code is moved). A job
// whose lock is held elsewhere is skipped: no machine waits to run the job a second time.
//
// If clocks differ by more than a job takes, the job runs twice, one run after the other: give
// hasp.MinHold a time longer than that difference, and shorter than the job's interval. A job does
// not learn that its lock was lost; gocron cannot report it. A job that must know locks by itself,
// with hasp.Client.Do.
func NewLocker(c *hasp.Client, opts ...hasp.LockOption) *Locker {
	return &Locker{client: c, prefix: "gocron/", opts: opts}
}

// Lock is called by gocron before a run.
func (l *Locker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	lease, err := l.client.Mutex(l.prefix+job, l.opts...).TryLock(ctx)
	if err != nil {
		return nil, err
	}
	return lock{lease}, nil
}

type lock struct{ lease *hasp.Lease }

// Unlock is called by gocron after a run. If the scheduler is being shut down, which ends
// ctx, the lock is released in the background; Client.Close waits for that.
func (l lock) Unlock(ctx context.Context) error { return l.lease.Release(ctx) }
