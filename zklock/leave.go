package zklock

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/go-zookeeper/zk"
)

// removal is the one goroutine that removes a ticket's node. It goes on when the callers
// of Leave have gone, until the server has confirmed it or the session ends: a node left
// behind would block its queue for as long as this client lives.
type removal struct {
	done chan struct{}
	err  error // valid when done is closed
	told bool  // some Leave has returned nil; guarded by ephemeralNode.mu
}

// Leave removes the node.
func (n *ephemeralNode) Leave(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r := n.startLeaving()
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
	n.mu.Lock()
	defer n.mu.Unlock()
	if r.told {
		return errLeft // confirmed once, to one caller
	}
	r.told = true
	return nil
}

// startLeaving returns the removal under way or starts it; nil if there is nothing to
// remove.
func (n *ephemeralNode) startLeaving() *removal {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.left = true // from here on no create begins, and our own deletion is no loss
	if n.selfWatchTimer != nil {
		n.selfWatchTimer.Stop()
	}
	if n.gone != nil || n.leaving == nil && n.creating == nil && n.node == "" {
		return nil
	}
	if n.leaving == nil {
		r := &removal{done: make(chan struct{})}
		n.leaving = r
		go func() {
			r.err = n.remove()
			n.mu.Lock()
			if answered(r.err) && r.err != nil {
				n.leaving = nil // the server refused it; another Leave may try again
				r.err = explain("delete the entry", r.err)
			} else {
				n.uncountLocked()
			}
			n.mu.Unlock()
			close(r.done)
		}()
	}
	return n.leaving
}

// remove deletes the node, however many attempts it takes. A create that is still under way is
// waited for: its node must not appear after we have looked.
func (n *ephemeralNode) remove() error {
	s := n.session
	ctx := context.Background() // the session's end ends every call
	n.mu.Lock()
	c := n.creating
	n.mu.Unlock()
	for c != nil {
		if err := n.resolve(ctx, c); err == nil {
			break
		}
		if err := s.over(); err != nil {
			return err
		}
		s.backOff()
	}
	n.mu.Lock()
	node := n.node
	n.mu.Unlock()
	if node == "" {
		return errLeft
	}
	for asked := false; ; asked = true {
		if err := s.connected(ctx); err != nil {
			return err
		}
		err := n.erase(node) // not by call: there is no context to return with
		switch {
		case err == zk.ErrNoNode && asked:
			// While the session lives only we remove its nodes, an administrator apart:
			// the attempt without an answer has done it.
			return nil
		case err == zk.ErrNoNode:
			return errLeft
		case answered(err) && !isCode(err, codeThrottled): // which will pass, and until then nothing is removed
			return err
		}
		if err := s.over(); err != nil {
			return err
		}
		s.backOff()
	}
}

// backOff spaces attempts that fail although there is a connection.
func (c *conn) backOff() {
	timer := time.NewTimer(20*time.Millisecond + rand.N(30*time.Millisecond))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.ended:
	}
}
