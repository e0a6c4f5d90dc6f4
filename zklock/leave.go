package zklock

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/go-zookeeper/zk"
)

// removal is the one goroutine that removes a grip's node. It goes on when the callers
// of Leave have gone, until the server has confirmed it or the session ends: a node left
// behind would block its queue for as long as this client lives.
type removal struct {
	done chan struct{}
	err  error // valid when done is closed
	told bool  // some Leave has returned nil; guarded by grip.mu
}

// Leave removes the node.
func (g *grip) Leave(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r := g.startLeaving()
	if r == nil {
		return errLeft
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if r.err != nil {
		return r.err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.told {
		return errLeft // confirmed once, to one caller
	}
	r.told = true
	return nil
}

// startLeaving returns the removal under way or starts it; nil if there is nothing to
// remove.
func (g *grip) startLeaving() *removal {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left = true // from here on no create begins, and our own deletion is no loss
	if g.vigil != nil {
		g.vigil.Stop()
	}
	if g.gone != nil || g.leaving == nil && g.creating == nil && g.node == "" {
		return nil
	}
	if g.leaving == nil {
		r := &removal{done: make(chan struct{})}
		g.leaving = r
		go func() {
			r.err = g.remove()
			g.mu.Lock()
			if answered(r.err) && r.err != nil {
				g.leaving = nil // the server refused it; another Leave may try again
				r.err = explain("delete the entry", r.err)
			} else {
				g.uncountLocked()
			}
			g.mu.Unlock()
			close(r.done)
		}()
	}
	return g.leaving
}

// remove deletes the node, whatever it takes. A create that is still under way is waited
// for: its node must not appear after we have looked.
func (g *grip) remove() error {
	s := g.session
	ctx := context.Background() // the session's end ends every call
	g.mu.Lock()
	c := g.creating
	g.mu.Unlock()
	for c != nil {
		if err := g.resolve(ctx, c); err == nil {
			break
		}
		if err := s.over(); err != nil {
			return err
		}
		s.rest()
	}
	g.mu.Lock()
	node := g.node
	g.mu.Unlock()
	if node == "" {
		return errLeft
	}
	for asked := false; ; asked = true {
		if err := s.connected(ctx); err != nil {
			return err
		}
		err := g.erase(node) // not by call: there is nobody who could lose patience
		switch {
		case err == zk.ErrNoNode && asked:
			// While the session lives nobody but us removes its nodes, an administrator apart:
			// the attempt without an answer has done it.
			return nil
		case err == zk.ErrNoNode:
			return errLeft
		case answered(err):
			return err
		}
		if err := s.over(); err != nil {
			return err
		}
		s.rest()
	}
}

// rest spaces attempts that fail although there is a connection.
func (c *conn) rest() {
	timer := time.NewTimer(20*time.Millisecond + rand.N(30*time.Millisecond))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.ended:
	}
}
