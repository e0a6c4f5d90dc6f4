package zklock

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/signal"
)

// ephemeralNode is the part that the tickets of both strategies share: one ephemeral node of ours,
// from the moment before its create is sent until it is known to be gone. A ticket's calls
// may end with their contexts long before the library's calls do, so what is under way is
// kept here, and the next call goes on from there.
type ephemeralNode struct {
	session *session
	request driver.Request

	path    string // what is created; the server may append a number
	flags   int32
	acl     []zk.ACL
	invalid error // the request cannot be served

	// look returns the czxid of the node if it is there and ours, else 0. find looks for it
	// after a create without an answer; "" if it is not there, which must be final. erase
	// deletes it, and never another's.
	look  func(ctx context.Context, node string) (czxid int64, err error)
	find  func(context.Context) (node string, czxid int64, err error)
	erase func(node string) error

	signal signal.Signal // something has happened to a blocker or to us

	mu             sync.Mutex
	left           bool        // Leave was called; nothing may be made any more
	counted        bool        // in session.entries
	creating       *createCall // under way, or ended with an unknown outcome
	node           string      // path of our node; "" before it is known
	token          uint64      // its czxid; 0 before it is known
	holding        bool        // the core was told so
	version        int32       // of its data, as far as we know
	gone           error       // another client has deleted it
	leaving        *removal
	selfWatchTimer *time.Timer
	selfWatched    bool // the watch on node is being set, or is set
}

// createCall is one create request, on a goroutine that lives as long as the library's call.
type createCall struct {
	*pendingCreate
	done chan struct{} // closed after the outcome has been noted
	err  error
}

// overLocked returns why nothing can be done any more.
func (n *ephemeralNode) overLocked() error {
	if n.gone != nil {
		return n.gone
	}
	if n.left {
		return errLeft
	}
	return n.session.over()
}

// ownPath returns the path of the node, or why there is none.
func (n *ephemeralNode) ownPath() (node string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.overLocked(); err != nil {
		return "", err
	}
	if n.node == "" {
		return "", errNotQueued
	}
	return n.node, nil
}

// begin starts a create unless the node exists (nil) or a create is not settled (not
// fresh).
func (n *ephemeralNode) begin() (c *createCall, fresh bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.overLocked(); err != nil {
		return nil, false, err
	}
	if n.node != "" {
		return nil, false, nil
	}
	if n.creating != nil {
		return n.creating, false, nil
	}
	s := n.session
	c = &createCall{pendingCreate: &pendingCreate{}, done: make(chan struct{})}
	if n.flags&zk.FlagSequence != 0 { // then no other ticket creates this path
		c.pendingCreate = s.trackCreate(n.path)
	}
	n.creating = c
	n.countLocked() // before it is sent
	go func() {
		// The library's Create makes one request and never a second.
		node, err := s.zk.Create(n.path, encodeRecord(&n.request, n.request.Value), n.flags, n.acl)
		s.pending.Delete(n.path)
		n.created(c, node, err)
		close(c.done)
	}()
	return c, true, nil
}

// created notes how a create ended. If that is not known, it stays unsettled.
func (n *ephemeralNode) created(c *createCall, node string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	c.err = err
	switch {
	case err == nil:
		n.creating = nil
		n.settleLocked(node, c.zxid.Load())
	case answered(err):
		n.creating = nil
		n.uncountLocked()
	}
}

// settleLocked notes that the node exists.
func (n *ephemeralNode) settleLocked(node string, czxid int64) {
	n.node, n.token = node, uint64(czxid)
	n.startSelfWatchLocked(selfWatchWaiting)
}

// settled waits until a create has ended.
func (n *ephemeralNode) settled(ctx context.Context, c *createCall) error {
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return ctx.Err() // the create goes on; Leave or the next Enqueue finds it
	case <-n.session.ended:
		return n.session.over()
	}
}

// resolve finds out about a create that an earlier call has left unsettled.
func (n *ephemeralNode) resolve(ctx context.Context, c *createCall) error {
	if err := n.settled(ctx, c); err != nil {
		return err
	}
	if answered(c.err) {
		return nil
	}
	node, czxid, err := n.find(ctx)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.creating != c {
		return nil // another call has resolved it
	}
	n.creating = nil
	if node == "" {
		n.uncountLocked()
		return nil
	}
	n.settleLocked(node, czxid)
	return nil
}

// held makes the verdict of an entry that holds.
func (n *ephemeralNode) held(ctx context.Context) (driver.Verdict, error) {
	n.mu.Lock()
	node, token, err := n.node, n.token, n.overLocked()
	n.mu.Unlock()
	if err != nil {
		return driver.Verdict{}, err
	}
	if token == 0 { // the monitor has not seen the answer: then the node is read
		czxid, err := n.look(ctx, node)
		if err != nil {
			return driver.Verdict{}, err
		}
		if czxid == 0 {
			return driver.Verdict{}, n.nodeDeleted()
		}
		token = uint64(czxid)
	}
	n.mu.Lock()
	n.token, n.holding = token, true
	n.startSelfWatchLocked(selfWatchHeld)
	n.mu.Unlock()
	return driver.Verdict{Held: true, Token: token}, nil
}

// nodeDeleted notes that another client has deleted our node, tells the core and wakes the
// waiter. It returns the error that says so.
func (n *ephemeralNode) nodeDeleted() error {
	n.mu.Lock()
	if err := n.overLocked(); err != nil {
		n.mu.Unlock()
		return err
	}
	n.gone = fmt.Errorf("%w: its node was deleted", driver.ErrGone)
	gone := n.gone
	n.uncountLocked()
	n.mu.Unlock()
	n.session.opts.Gone(n.request.ID, gone)
	n.signal.Notify()
	return gone
}

// waitSignal waits for the signal.
func (n *ephemeralNode) waitSignal(ctx context.Context) error {
	select {
	case <-n.signal.C():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-n.session.ended:
		return n.session.over()
	}
}

// countLocked has the session renewed by a majority from now on; see KeepAlive.
func (n *ephemeralNode) countLocked() {
	if !n.counted {
		n.counted = true
		n.session.entries.Add(1)
	}
}

func (n *ephemeralNode) uncountLocked() {
	if n.counted {
		n.counted = false
		n.session.entries.Add(-1)
	}
}
