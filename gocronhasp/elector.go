package gocronhasp

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hasplock/hasp"
)

// ErrNotLeader is the answer of IsLeader on all machines but one.
var ErrNotLeader = errors.New("gocronhasp: this machine does not lead")

// Elector stands for election in the background, again whenever a term has been lost. Safe
// for use by many goroutines.
type Elector struct {
	election *hasp.Election
	value    []byte
	stop     context.CancelFunc
	done     chan struct{}

	mu   sync.Mutex
	term *hasp.Term // of this machine, perhaps over; nil before the first
}

// NewElector returns a gocron.Elector that campaigns for the election called name until Close.
// value (at most 1 KB) is published while this machine leads: its address, say. While the store is
// unreachable, or refuses, this machine does not lead, and the campaign is tried again.
func NewElector(c *hasp.Client, name string, value []byte, opts ...hasp.LockOption) *Elector {
	ctx, stop := context.WithCancel(context.Background())
	e := &Elector{election: c.Election(name, opts...), value: value, stop: stop, done: make(chan struct{})}
	go e.campaign(ctx)
	return e
}

// IsLeader returns nil if this machine leads at this moment, and ErrNotLeader otherwise. It asks no
// store: a lead that is lost ends here before another machine can begin to lead. A job that runs
// longer than that should have its own fencing token.
func (e *Elector) IsLeader(context.Context) error {
	if term := e.current(); term == nil || !term.Held() {
		return ErrNotLeader
	}
	return nil
}

// current returns the term of this machine, perhaps over; nil before the first.
func (e *Elector) current() *hasp.Term {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.term
}

// Close gives the lead up, if this machine has it, and stops campaigning. It returns when
// the store has confirmed that, or the error of Term.Resign. ctx bounds it.
func (e *Elector) Close(ctx context.Context) error {
	e.stop()
	<-e.done // comes: Campaign returns at once when its context ends
	term := e.current()
	if term == nil || !term.Held() {
		return nil
	}
	return term.Resign(ctx) // without e.mu: IsLeader says no meanwhile, and does not wait for the store
}

// campaignAgain is the pause after a campaign that failed: the store is unreachable, or refuses the
// election for good, and more frequent tries would not help.
const campaignAgain = time.Second

func (e *Elector) campaign(ctx context.Context) {
	defer close(e.done)
	for ctx.Err() == nil {
		term, err := e.election.Campaign(ctx, e.value)
		if errors.Is(err, hasp.ErrClosed) {
			return
		}
		if err != nil {
			select {
			case <-time.After(campaignAgain):
			case <-ctx.Done():
			}
			continue
		}
		e.mu.Lock()
		e.term = term
		e.mu.Unlock()
		select {
		case <-term.Lost():
		case <-ctx.Done():
		}
	}
}
