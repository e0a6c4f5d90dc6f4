package zklock

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/bell"
)

// grip is what the tickets of both strategies are made of: the hold on one ephemeral node,
// from the moment before its create is sent until it is known to be gone. A ticket's calls
// may end with their contexts long before the library's calls do, so what is under way is
// kept here, and whoever comes next goes on from there.
type grip struct {
	session *session
	request driver.Request

	path  string // what is created; the server may append a number
	flags int32
	acl   []zk.ACL
	bad   error // the request cannot be served

	// look returns the czxid of the node if it is there and ours, else 0. find looks for it
	// after a create without an answer; "" if it is not there, which must be final. erase
	// deletes it, and nobody else's.
	look  func(ctx context.Context, node string) (czxid int64, err error)
	find  func(context.Context) (node string, czxid int64, err error)
	erase func(node string) error

	bell bell.Bell // something has happened to a blocker or to us

	mu       sync.Mutex
	left     bool      // Leave was called; nothing may be made any more
	counted  bool      // in session.entries
	creating *creation // under way, or ended with an unknown outcome
	node     string    // path of our node; "" before it is known
	token    uint64    // its czxid; 0 before it is known
	version  int32     // of its data, as far as we know
	gone     error     // it was deleted by somebody else
	leaving  *removal
	vigil    *time.Timer
	vigilant bool // the watch on node is being set, or stands
}

// creation is one create request, on a goroutine that lives as long as the library's call.
type creation struct {
	*flight
	done chan struct{} // closed after the grip has noted the outcome
	err  error
}

// errLeft is what a call gets that comes after Leave.
var errLeft = fmt.Errorf("%w: it has left the queue", driver.ErrGone)

// errOut is what a call gets that comes before Enqueue.
var errOut = fmt.Errorf("%w: it is not in the queue", driver.ErrGone)

// overLocked returns why nothing can be done any more.
func (g *grip) overLocked() error {
	if g.gone != nil {
		return g.gone
	}
	if g.left {
		return errLeft
	}
	return g.session.over()
}

// standing returns the node, or why there is none.
func (g *grip) standing() (node string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.overLocked(); err != nil {
		return "", err
	}
	if g.node == "" {
		return "", errOut
	}
	return g.node, nil
}

// begin starts a create unless the node stands (nil) or a create is not settled (not
// fresh).
func (g *grip) begin() (c *creation, fresh bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.overLocked(); err != nil {
		return nil, false, err
	}
	if g.node != "" {
		return nil, false, nil
	}
	if g.creating != nil {
		return g.creating, false, nil
	}
	s := g.session
	c = &creation{flight: &flight{}, done: make(chan struct{})}
	if g.flags&zk.FlagSequence != 0 { // then nobody else creates this path
		c.flight = s.expect(g.path)
	}
	g.creating = c
	g.countLocked() // before it is sent
	go func() {
		// The library's Create makes one request and never a second.
		node, err := s.zk.Create(g.path, encodeRecord(&g.request, g.request.Value), g.flags, g.acl)
		s.forget(g.path)
		g.created(c, node, err)
		close(c.done)
	}()
	return c, true, nil
}

// created notes how a create ended. If that is not known, it stays unsettled.
func (g *grip) created(c *creation, node string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c.err = err
	switch {
	case err == nil:
		g.creating = nil
		g.settleLocked(node, c.zxid.Load())
	case answered(err):
		g.creating = nil
		g.uncountLocked()
	}
}

// settleLocked notes that the node stands.
func (g *grip) settleLocked(node string, czxid int64) {
	g.node, g.token = node, uint64(czxid)
	g.startVigilLocked(vigilWaiting)
}

// settled waits until a create has ended.
func (g *grip) settled(ctx context.Context, c *creation) error {
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return ctx.Err() // the create goes on; Leave or the next Enqueue finds it
	case <-g.session.ended:
		return g.session.over()
	}
}

// resolve finds out about a create that an earlier call has left unsettled.
func (g *grip) resolve(ctx context.Context, c *creation) error {
	if err := g.settled(ctx, c); err != nil {
		return err
	}
	if answered(c.err) {
		return nil
	}
	node, czxid, err := g.find(ctx)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.creating != c {
		return nil // somebody else has resolved it
	}
	g.creating = nil
	if node == "" {
		g.uncountLocked()
		return nil
	}
	g.settleLocked(node, czxid)
	return nil
}

// held is the verdict of one who holds.
func (g *grip) held(ctx context.Context) (driver.Verdict, error) {
	g.mu.Lock()
	node, token, err := g.node, g.token, g.overLocked()
	g.mu.Unlock()
	if err != nil {
		return driver.Verdict{}, err
	}
	if token == 0 { // the tap has not told: then the node is asked
		czxid, err := g.look(ctx, node)
		if err != nil {
			return driver.Verdict{}, err
		}
		if czxid == 0 {
			return driver.Verdict{}, g.vanished()
		}
		token = uint64(czxid)
	}
	g.mu.Lock()
	g.token = token
	g.startVigilLocked(vigilHeld)
	g.mu.Unlock()
	return driver.Verdict{Held: true, Token: token}, nil
}

// vanished notes that somebody else has deleted our node, tells the core and wakes the
// waiter. It returns the error that says so.
func (g *grip) vanished() error {
	g.mu.Lock()
	if err := g.overLocked(); err != nil {
		g.mu.Unlock()
		return err
	}
	g.gone = fmt.Errorf("%w: its node was deleted", driver.ErrGone)
	gone := g.gone
	g.uncountLocked()
	g.mu.Unlock()
	g.session.opts.Gone(g.request.ID, gone)
	g.bell.Ring()
	return gone
}

// rung waits for a ring.
func (g *grip) rung(ctx context.Context) error {
	select {
	case <-g.bell.Rings():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-g.session.ended:
		return g.session.over()
	}
}

// countLocked has the session renewed by a majority from now on; see KeepAlive.
func (g *grip) countLocked() {
	if !g.counted {
		g.counted = true
		g.session.entries.Add(1)
	}
}

func (g *grip) uncountLocked() {
	if g.counted {
		g.counted = false
		g.session.entries.Add(-1)
	}
}
