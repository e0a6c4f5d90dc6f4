package mysqllock

import (
	"context"
	"sync"
	"sync/atomic"
)

// successOnce runs a check until it has succeeded once. Callers that come while one
// checks wait for it: a thousand sessions of one program do not each look at the schema.
type successOnce struct {
	open atomic.Bool
	once sync.Once
	turn chan struct{} // one slot, as in line
}

func (g *successOnce) pass(ctx context.Context, check func() error) error {
	if g.open.Load() {
		return ctx.Err()
	}
	g.once.Do(func() { g.turn = make(chan struct{}, 1) })
	select {
	case g.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-g.turn }()
	if g.open.Load() {
		return nil
	}
	err := check()
	g.open.Store(err == nil)
	return err
}

// shut has the next one check again: the tables were not there.
func (g *successOnce) shut() { g.open.Store(false) }
