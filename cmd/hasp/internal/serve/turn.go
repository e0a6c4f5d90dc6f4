package serve

import (
	"context"
	"sync"

	"github.com/hasplock/hasp/internal/httpapi"
)

// errOvertaken ends a request when the next one for the same lock has come.
var errOvertaken = httpapi.NewProblem(httpapi.Overtaken, "")

// turn lets one request after the other use a ticket, or keep a session alive, as package driver
// demands. A new request ends the one that is under way: its client has given that up, and the network
// has not said so yet. A request that was delivered late can end a good one in the same way; that one's client
// is told to ask again.
type turn struct {
	mu   sync.Mutex
	end  context.CancelCauseFunc // of the last that has come
	free chan struct{}           // holds one value while no request has the turn
}

func newTurn() *turn {
	t := &turn{free: make(chan struct{}, 1)}
	t.free <- struct{}{}
	return t
}

// take waits for the turn. The context that it returns ends with ctx, and when the next request comes.
func (t *turn) take(ctx context.Context) (context.Context, func(), error) {
	ctx, end := context.WithCancelCause(ctx)
	t.mu.Lock()
	if t.end != nil {
		t.end(errOvertaken)
	}
	t.end = end
	t.mu.Unlock()
	select {
	case <-t.free:
		return ctx, func() { end(nil); t.free <- struct{}{} }, nil
	case <-ctx.Done():
		defer end(nil)
		return nil, nil, context.Cause(ctx)
	}
}
