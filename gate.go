package hasp

import (
	"context"
	"slices"
	"sync"
)

// gates lets one acquisition per name and process into the store at a time, first come,
// first served. A thousand goroutines that want one lock are then one entry in the
// store's queue: its cost for everybody else does not grow with them, and another
// process waits for one of ours, not for all.
//
// Only acquiring is gated, not holding: as soon as one is in, the next may queue up
// behind it in the store, so that the hand-over is the store's push and nothing waits
// for this process to notice first.
//
// The gate is for economy and order. Exclusion is the store's alone: a Try does not
// pass through here.
type gates struct {
	mu    sync.Mutex
	names map[string]gate
}

// gate is present in the map iff somebody is inside. It has those who wait, oldest first.
// A plain slice, so that passing a free gate allocates nothing.
type gate []chan struct{}

// enter waits for the turn of this caller. Without an error, leave must follow.
func (g *gates) enter(ctx context.Context, name string) error {
	g.mu.Lock()
	if g.names == nil {
		g.names = map[string]gate{}
	}
	at, occupied := g.names[name]
	if !occupied {
		g.names[name] = nil
		g.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	g.names[name] = append(at, turn)
	g.mu.Unlock()

	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.names[name], turn); i >= 0 {
		g.names[name] = slices.Delete(g.names[name], i, i+1)
		return ctx.Err()
	}
	// leave took us off the queue before we could: the turn is ours, and nobody else
	// will pass it on.
	g.passLocked(name)
	return ctx.Err()
}

func (g *gates) leave(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.passLocked(name)
}

func (g *gates) passLocked(name string) {
	at := g.names[name]
	if len(at) == 0 {
		delete(g.names, name)
		return
	}
	close(at[0])
	at[0] = nil
	g.names[name] = at[1:]
}
