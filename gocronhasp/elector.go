package gocronhasp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/hasplock/hasp"
)

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
	err := term.Resign(closing) // without e.mu: IsLeader says no meanwhile, and does not wait for the store
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
// the store has confirmed that, or the error of Term.Resign. ctx bounds it.
func (e *Elector) Close(ctx context.Context) error {
	e.mu.Lock()
	if e.closing == nil {
		e.closing = ctx
	}
	e.mu.Unlock()
	e.stop()
	<-e.done // comes: a campaign ends with its context, Resign with ctx
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.resign
}
