package zklock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp/driver"
)

// Enqueue makes the node and decides by the list that came with the answer, or by a new one
// if the node exists already.
func (t *ticket) Enqueue(ctx context.Context) (driver.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return driver.Verdict{}, err
	}
	if t.invalid != nil {
		return driver.Verdict{}, t.invalid
	}
	if t.request.NoWait {
		if v, refused, err := t.peek(ctx); refused || err != nil {
			return v, err
		}
	}
	names, err := t.enqueue(ctx)
	if err != nil {
		return driver.Verdict{}, err
	}
	return t.decide(ctx, names)
}

// peek spares the store the node of a try that would be refused anyhow, and the waiters
// from being queued behind it for a moment. It costs a successful try one read.
//
// Our server may be behind, and show a holder that has been told long ago that it has left. That
// is found out only where it would have us refuse: what blocks us is looked at again
// when the server has caught up. A lock that looks free is tried in any case.
func (t *ticket) peek(ctx context.Context) (_ driver.Verdict, refused bool, _ error) {
	t.mu.Lock()
	begun, over := t.creating != nil || t.node != "", t.overLocked()
	t.mu.Unlock()
	if begun || over != nil {
		return driver.Verdict{}, false, over
	}
	names, err := t.list(ctx)
	if err != nil {
		return driver.Verdict{}, false, err
	}
	if holder, err := t.firstBlocker(names); holder == "" && err == nil {
		return driver.Verdict{}, false, nil
	}
	if err := t.session.conn.catchUp(ctx); err != nil {
		return driver.Verdict{}, false, err
	}
	if names, err = t.list(ctx); err != nil {
		return driver.Verdict{}, false, err
	}
	holder, err := t.firstBlocker(names)
	if holder == "" || err != nil {
		return driver.Verdict{}, false, err
	}
	return driver.Verdict{Holder: t.session.ownerOf(ctx, t.parent+"/"+holder)}, true, nil
}

// enqueue makes the node if it does not exist, and returns a list of the children that was
// made after.
func (t *ticket) enqueue(ctx context.Context) ([]string, error) {
	s := t.session
	for sent := false; ; {
		if err := t.makeParent(ctx, &sent); err != nil {
			return nil, err
		}
		if err := s.connected(ctx); err != nil {
			return nil, err
		}
		c, fresh, err := t.begin()
		switch {
		case err != nil:
			return nil, err
		case c == nil && t.counterExhausted():
			if err := t.renewCounter(ctx); err != nil {
				return nil, err
			}
			continue
		case c == nil:
			return t.list(ctx)
		case !fresh:
			if err := t.resolve(ctx, c); err != nil {
				return nil, err
			}
			continue
		}
		names, err := t.createAndList(ctx, c)
		if err == zk.ErrNoNode { // the container has been removed, by the servers or by hand
			s.backend.parents.note(t.parent, false)
			continue
		}
		if err == zk.ErrNoAuth && t.parentOfSession(ctx) { // which the servers find out only after the permission
			err = zk.ErrNoChildrenForEphemerals
		}
		if err != nil || names != nil && !t.counterExhausted() {
			return names, explain("create the entry", err)
		}
	}
}

// parentOfSession reports whether the lock's node belongs to a session: it is a lock of
// strategy=node.
func (t *ticket) parentOfSession(ctx context.Context) bool {
	stat, err := t.session.stat(ctx, t.parent)
	return err == nil && stat != nil && stat.EphemeralOwner != 0
}

// makeParent makes the lock's node if it is not known to exist: by a request whose answer is not
// waited for, or, when that was sent before, by one whose answer is.
func (t *ticket) makeParent(ctx context.Context, sent *bool) (err error) {
	s := t.session
	p := &s.backend.parents
	if p.has(t.parent) {
		return nil
	}
	if !*sent {
		*sent, err = p.send(ctx, s.conn, s.backend.opts, t.parent)
		if *sent || err != nil {
			return err
		}
	}
	return p.make(ctx, s.conn, s.backend.opts, t.parent)
}

// counterExhausted reports whether the node has the last number there is. The counter of a lock's
// node does not go on from there: all that come later get the same number
// and would each see no entry in front.
func (t *ticket) counterExhausted() bool {
	node, err := t.ownPath()
	if err != nil {
		return false
	}
	_, seq, _ := cutSeq(node)
	return seq == math.MaxInt32
}

// renewCounter takes the node back, which is no place in the queue, and removes the lock's
// node for a new one with a new counter. That needs an empty queue: as long as an entry
// holds or waits no other can get in, which empties it.
func (t *ticket) renewCounter(ctx context.Context) error {
	node, err := t.ownPath()
	if err != nil {
		return err
	}
	s := t.session
	if err := s.do(ctx, func() error { return t.erase(node) }); err != nil && err != zk.ErrNoNode {
		return explain("delete the entry", err) // it exists; Leave or the next Enqueue goes on
	}
	t.mu.Lock()
	t.node, t.token, t.decided = "", 0, false
	t.selfWatchTimer.Stop()
	t.selfWatchTimer, t.selfWatched = nil, false
	t.uncountLocked()
	t.mu.Unlock()
	err = s.do(ctx, func() error { return s.zk.Delete(t.parent, -1) })
	s.backend.parents.note(t.parent, false)
	switch err {
	case nil, zk.ErrNoNode:
		return nil
	case zk.ErrNotEmpty, zk.ErrNoAuth:
		return fmt.Errorf("%w: the numbers under %s are used up; it must be removed (hasp does when the queue is empty, if it may): %w", driver.ErrRefused, t.parent, err)
	}
	return explain("remove "+t.parent, err)
}

// createAndList pipelines the list behind the create. The monitor reports when the create is on its
// way, so that the list is behind it in this session's order at the server: one round trip
// for both. If the connection changed in between the list may be older than the node;
// it is then made again, as nil tells enqueue.
func (t *ticket) createAndList(ctx context.Context, c *createCall) ([]string, error) {
	select {
	case <-c.sent:
	case <-c.done:
	case <-ctx.Done():
		return nil, ctx.Err() // the create goes on; Leave or the next Enqueue finds it
	case <-t.session.ended:
		return nil, t.session.over()
	}
	names, listErr := t.list(ctx)
	if err := t.settled(ctx, c); err != nil {
		return nil, err
	}
	if c.err != nil {
		return nil, endedFirst(ctx, c.err)
	}
	switch {
	case errors.Is(listErr, driver.ErrRefused): // only here, where the node is new: a waiter keeps its place
		return nil, t.giveBack(ctx, listErr)
	case listErr != nil:
		return nil, listErr
	}
	t.mu.Lock()
	name := path.Base(t.node)
	t.mu.Unlock()
	if !slices.Contains(names, name) {
		return nil, nil
	}
	return names, nil
}

// giveBack removes the node of a request that is refused, because the error says that nothing was
// changed: else it is not left again, and blocks its queue for as long as the session lives. If ctx
// ends first the outcome is unknown, and the error is not the refusal.
func (t *ticket) giveBack(ctx context.Context, refusal error) error {
	if err := t.Leave(ctx); err != nil && ctx.Err() != nil {
		return ctx.Err() // the removal goes on, or was not begun: our caller leaves
	}
	return refusal
}

// search looks for our node after a create without an answer. That the node is not there is
// final:
//
// The create's call has ended, so its connection is broken and this one is another. The
// server that took it over has closed the old connection, if it was its own, before it
// answered us; what another server still gets from the old one the leader refuses,
// because the session has moved. What was under way before that has reached the leader
// before our request to catch up does, and so has been decided when that is answered.
func (t *ticket) search(ctx context.Context) (node string, czxid int64, err error) {
	if err := t.session.conn.catchUp(ctx); err != nil {
		return "", 0, err
	}
	names, err := t.list(ctx)
	if err != nil {
		return "", 0, err
	}
	id := guidOf(t.request.ID)
	for _, name := range names {
		if c, ok := t.dialect().parse(name); !ok || c.guid != id {
			continue
		}
		node = t.parent + "/" + name
		if czxid, err = t.look(ctx, node); err != nil || czxid != 0 {
			return node, czxid, err
		}
	}
	return "", 0, nil
}

// lookAt is ephemeralNode.look. IDs are used once, and yet: what another session has is not
// adopted.
func (t *ticket) lookAt(ctx context.Context, node string) (czxid int64, err error) {
	stat, err := t.session.stat(ctx, node)
	if stat == nil || stat.EphemeralOwner != t.session.zk.SessionID() {
		return 0, explain("look at the entry", err)
	}
	return stat.Czxid, nil
}
