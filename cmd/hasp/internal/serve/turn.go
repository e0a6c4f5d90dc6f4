package serve

import (
	"context"
	"sync"
	"time"

	"github.com/hasplock/hasp/internal/httpapi"
)

// errOvertaken ends a request when the next one for the same lock has come.
var errOvertaken = httpapi.NewProblem(httpapi.Overtaken, "")

// turn lets one request after the other use a ticket, or keep a session alive, as package driver
// demands. A new request ends the one that is under way: its client has given that up, and the network
// has not said so yet. A request that was delivered late can end a good one in the same way; that one's client
// is told to ask again.
type turn struct {
	mu    sync.Mutex
	last  *use          // by the last request that has come; nil if that is over
	taken bool          // by a request, or by the value in free
	queue int           // requests that wait, without the one that the value in free is for
	free  chan struct{} // the turn, handed over to one that waits; nil until one has waited
}

// use has the steps of one request in its turn: requests to the store, and waits. Each step has one context, and between two of them
// there is none: each link of a chain of contexts takes half a kilobyte, and ten thousand requests wait.
type use struct {
	turn *turn

	// Guarded by the turn's mu.
	client context.Context    // ends when the client goes away
	cancel context.CancelFunc // of the step that is under way; nil if there is none
	waits  bool               // that step waits for nothing but news
	ended  error              // why there is no further step
}

// take waits for the turn. What it returns must be released.
func (t *turn) take(client context.Context) (*use, error) {
	u := &use{turn: t, client: client}
	t.mu.Lock()
	if t.last != nil {
		t.last.endLocked(errOvertaken)
	}
	t.last = u
	if !t.taken {
		t.taken = true
		t.mu.Unlock()
		return u, nil
	}
	t.queue++
	if t.free == nil {
		t.free = make(chan struct{}, 1)
	}
	t.mu.Unlock()
	ctx, done := u.step(time.Now().Add(silence), false)
	defer done()
	select {
	case <-t.free:
		return u, nil
	case <-ctx.Done():
	}
	err := u.over()
	if err == nil {
		err = ctx.Err()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	u.forgetLocked()
	if t.queue > 0 { // if there is a value in free, it is for another
		t.queue--
		return nil, err
	}
	<-t.free
	t.taken = false
	return nil, err
}

// silence is how long a store, or a request before, may say nothing.
const silence = longestWait + storeAnswer

func (u *use) release() {
	t := u.turn
	t.mu.Lock()
	defer t.mu.Unlock()
	u.forgetLocked()
	if t.queue > 0 {
		t.queue--
		t.free <- struct{}{} // the one before was received: it has released
		return
	}
	t.taken = false
}

// forgetLocked lets go of what a later request does not need to end.
func (u *use) forgetLocked() {
	if u.turn.last == u {
		u.turn.last = nil
	}
}

// step is the context of the next step, for a wait or for a request to the store. It ends at a moment, with the client, and as soon as
// the use is ended, also if that was before.
func (u *use) step(until time.Time, waits bool) (context.Context, context.CancelFunc) {
	u.turn.mu.Lock()
	defer u.turn.mu.Unlock()
	ctx, cancel := context.WithDeadline(u.client, until)
	if u.ended != nil {
		cancel()
		return ctx, cancel
	}
	u.cancel, u.waits = cancel, waits
	return ctx, func() {
		cancel()
		u.turn.mu.Lock()
		defer u.turn.mu.Unlock()
		u.cancel = nil
	}
}

// over says why there is no further step, if that is so.
func (u *use) over() error {
	u.turn.mu.Lock()
	defer u.turn.mu.Unlock()
	if u.ended == nil && u.client.Err() != nil {
		return context.Cause(u.client)
	}
	return u.ended
}

// detach lets the use outlast the request that it came with, by a client of which end tells the end.
func (u *use) detach() {
	u.turn.mu.Lock()
	defer u.turn.mu.Unlock()
	u.client = context.Background()
}

func (u *use) end(why error) {
	u.turn.mu.Lock()
	defer u.turn.mu.Unlock()
	u.endLocked(why)
}

// endLocked ends the use for good: the first reason stays.
func (u *use) endLocked(why error) {
	if u.ended == nil {
		u.ended = why
	}
	if u.cancel != nil {
		u.cancel()
	}
}

// end ends what is under way.
func (t *turn) end(why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last != nil {
		t.last.endLocked(why)
	}
}

// endWait ends a step that waits, and no other.
func (t *turn) endWait() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last != nil && t.last.waits && t.last.cancel != nil {
		t.last.cancel()
	}
}
