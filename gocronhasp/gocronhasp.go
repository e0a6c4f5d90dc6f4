// Package gocronhasp lets several machines share the jobs of github.com/go-co-op/gocron
// with a hasp lock: either each run of a job takes the job's lock ([NewLocker]), or one
// machine leads and runs them all ([NewElector]).
//
//	locker := gocronhasp.NewLocker(client, hasp.MinHold(5*time.Second))
//	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
//
// Which to choose: with the locker the work is spread over the machines, and each run needs
// the store; with the elector one machine has all of it, jobs with state in memory keep it,
// and a run needs no store.
package gocronhasp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

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

// ErrNotLeader is the answer of IsLeader on all machines but one.
var ErrNotLeader = errors.New("gocronhasp: this machine does not lead")

// Elector stands for election in the background, again whenever a term has been lost. Safe
// for use by many goroutines.
type Elector struct {
	stop context.CancelFunc
	done chan struct{}

	mu      sync.Mutex
	term    *hasp.Term      // of this machine, perhaps over; nil before the first
	ended   error           // why it stands no longer
	closing context.Context // Close's; nil before
	resign  error           // of the term that Close has ended
}

// NewElector returns a gocron.Elector that campaigns for the election called name until Close.
// value (at most 1 KB) is published while this machine leads: its address, say.
//
// It campaigns as [hasp.Election.Run] does. While the store cannot be reached this machine does not
// lead, and the campaign is tried again; the client's observers are told of each failure, or
// log/slog's default logger is. What no repetition cures ends it: a wrong name or value, a store
// without elections, a refusal of the store before the first term. That is logged, and the error of
// IsLeader from then on.
func NewElector(c *hasp.Client, name string, value []byte, opts ...hasp.LockOption) *Elector {
	ctx, stop := context.WithCancel(context.Background())
	e := &Elector{stop: stop, done: make(chan struct{})}
	go func() {
		defer close(e.done)
		err := c.Election(name, opts...).Run(ctx, value, e.lead)
		if ctx.Err() != nil || errors.Is(err, hasp.ErrClosed) {
			return
		}
		e.mu.Lock()
		e.ended = err
		e.mu.Unlock()
		slog.Error("gocronhasp: this machine no longer stands for election, and runs no jobs", "election", name, "error", err)
	}()
	return e
}

// lead holds one term until it is lost, or the elector is closed.
func (e *Elector) lead(ctx context.Context, term *hasp.Term) error {
	e.mu.Lock()
	e.term = term
	e.mu.Unlock()
	<-ctx.Done()
	e.mu.Lock()
	closing := e.closing
	e.mu.Unlock()
	if closing == nil || !term.Held() {
		return nil
	}
	err := term.Release(closing) // without e.mu: IsLeader says no meanwhile, and does not wait for the store
	e.mu.Lock()
	e.resign = err
	e.mu.Unlock()
	return nil
}

// IsLeader returns nil if this machine leads at this moment, and otherwise an error that wraps
// ErrNotLeader, and the reason if this machine has stopped to campaign. It asks no store: a lead
// that is lost ends here before another machine can begin to lead. A job that runs longer than that
// should have its own fencing token.
func (e *Elector) IsLeader(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.ended != nil:
		return fmt.Errorf("%w, and no longer stands for election: %w", ErrNotLeader, e.ended)
	case e.term == nil || !e.term.Held():
		return ErrNotLeader
	}
	return nil
}

// Close gives the lead up, if this machine has it, and stops campaigning. It returns when
// the store has confirmed that, or the error of the term's Release. ctx bounds it.
func (e *Elector) Close(ctx context.Context) error {
	e.mu.Lock()
	if e.closing == nil {
		e.closing = ctx
	}
	e.mu.Unlock()
	e.stop()
	<-e.done // comes: a campaign ends with its context, Release with ctx
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.resign
}
