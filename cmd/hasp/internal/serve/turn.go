package serve

import (
	"context"
	"sync"
	"time"

	"github.com/hasplock/hasp/internal/httpapi"
)

// errOvertaken ends a request when the next one for the same lock has come.
var errOvertaken = httpapi.NewProblem(httpapi.Overtaken, "")

// silence is how long a store, or a request before, may say nothing.
const silence = longestWait + storeAnswer

// turn lets one request after the other use a ticket, or keep a session alive, as package driver
// demands. A new request ends the one that is under way: its client has given that up, and the
// network has not said so yet. A request that was delivered late can end a good one in the same
// way; that one's client is told to ask again.
type turn struct {
	mu    sync.Mutex
	last  *use          // of the last request that has come; nil if that is over
	taken chan struct{} // full while a request has the turn
}

func newTurn() *turn { return &turn{taken: make(chan struct{}, 1)} }

// use is one request's time with what the turn is of. ctx ends with the request's client, with the
// server, and when the use is ended; its cause says why.
type use struct {
	turn   *turn
	ctx    context.Context
	end    context.CancelCauseFunc
	detach func() bool // from the client: the use then goes on without it
}

// take waits for the turn. What it returns must be released.
func (t *turn) take(client, over context.Context) (*use, error) {
	ctx, end := context.WithCancelCause(over)
	u := &use{turn: t, ctx: ctx, end: end, detach: context.AfterFunc(client, func() { end(context.Cause(client)) })}
	t.mu.Lock()
	if t.last != nil {
		t.last.end(errOvertaken)
	}
	t.last = u
	t.mu.Unlock()
	bounded, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	select {
	case t.taken <- struct{}{}:
		return u, nil
	case <-bounded.Done():
		u.forget()
		return nil, context.Cause(bounded)
	}
}

func (u *use) release() {
	u.forget()
	<-u.turn.taken
}

func (u *use) forget() {
	u.detach()
	u.end(nil)
	u.turn.mu.Lock()
	defer u.turn.mu.Unlock()
	if u.turn.last == u {
		u.turn.last = nil
	}
}

// step makes one request to the store.
func (u *use) step(bound time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(u.ctx, bound)
	defer cancel()
	err := f(ctx)
	if u.ctx.Err() != nil && isContext(err) {
		return context.Cause(u.ctx)
	}
	return err
}

// end ends the use that is under way.
func (t *turn) end(why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last != nil {
		t.last.end(why)
	}
}
