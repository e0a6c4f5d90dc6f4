package zklock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp/driver"
)

// nodeTicket is strategy Node: the lock is a single ephemeral node, every client tries to
// create it, and every waiter is woken when it goes. A waiter has nothing in the store, so
// there is no order, and a release with n waiters costs n events and n creates, of which
// one succeeds. It exists to share locks with programs that do the same.
type nodeTicket struct {
	ephemeralNode
	unreadable bool // we may not read another's node; only Wait looks at it
}

func newNodeTicket(s *session, r driver.Request) *nodeTicket {
	o := s.backend.opts
	node, err := o.path(r.Name)
	if err == nil && r.Units != driver.Whole {
		err = fmt.Errorf("%w: with strategy %s there are mutexes and elections only", driver.ErrUnsupported, StrategyNode)
	}
	t := &nodeTicket{}
	t.ephemeralNode = ephemeralNode{
		session: s, request: r, invalid: err,
		path: node, flags: zk.FlagEphemeral, acl: s.nodeACL(),
		look: t.lookAt, find: t.search,
	}
	t.erase = t.eraseOwn
	return t
}

// nodeACL lets this session alone write: the path is shared, and when our node has
// been deleted by an administrator it may be another's by the time we publish or release.
// ZooKeeper compares no owner and no czxid before it deletes, but it does check who may
// write; so each session has its own identity, made of random bits, and a release
// writes before it deletes, in one transaction. (The permission to delete lies with the
// parent, so that operators and other programs can do that as always.)
func (s *session) nodeACL() []zk.ACL {
	acl := zk.DigestACL(zk.PermAll, s.identity.user, s.identity.password)
	if o := s.backend.opts; o.ACL == ACLCreatorOnly {
		return append(acl, zk.DigestACL(zk.PermRead, o.User, o.Password)...)
	}
	return append(acl, zk.WorldACL(zk.PermRead)...)
}

func (t *nodeTicket) eraseOwn(node string) error {
	rs, err := t.session.zk.Multi(
		&zk.SetDataRequest{Path: node, Version: -1},
		&zk.DeleteRequest{Path: node, Version: -1},
	)
	for i, r := range rs {
		// A client that may not write is refused for the data, as another's node by now; one that may
		// only not delete, for the second.
		if r.Error == zk.ErrNoNode || r.Error == zk.ErrNoAuth && i == 0 {
			return zk.ErrNoNode
		}
	}
	return err
}

// Enqueue tries to create the node.
func (t *nodeTicket) Enqueue(ctx context.Context) (driver.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return driver.Verdict{}, err
	}
	if t.invalid != nil {
		return driver.Verdict{}, t.invalid
	}
	taken, err := t.attempt(ctx)
	switch {
	case err != nil:
		return driver.Verdict{}, err
	case !taken:
		return t.held(ctx)
	}
	holder, found := t.session.holderOf(ctx, t.path)
	if found && holder.Session == "" {
		return driver.Verdict{}, fmt.Errorf("%w: the node %s belongs to no session, and so is no lock of strategy=node: strategy=queue uses the name, or did a moment ago "+
			"(the servers remove its empty node in a minute or two), or it was made by hand; let all clients of a name use one strategy", driver.ErrMismatch, t.path)
	}
	if !t.request.NoWait {
		holder.Owner = "" // the caller asks for it when it wants to know
	}
	return driver.Verdict{Holder: holder.Owner}, nil
}

// attempt returns when our node exists, or says that another's does.
func (t *nodeTicket) attempt(ctx context.Context) (taken bool, err error) {
	s := t.session
	for {
		if err := s.connected(ctx); err != nil {
			return false, err
		}
		c, fresh, err := t.begin()
		switch {
		case err != nil:
			return false, err
		case c == nil:
			return false, nil
		case !fresh:
			if err := t.resolve(ctx, c); err != nil {
				return false, err
			}
			continue
		}
		if err := t.settled(ctx, c); err != nil {
			return false, err
		}
		switch c.err {
		case nil:
			return false, nil
		case zk.ErrNodeExists:
			return true, nil
		case zk.ErrNoNode:
			if err := makeRoot(ctx, s.conn, s.backend.opts); err != nil {
				return false, err
			}
		default:
			return false, explain("create the lock's node", c.err)
		}
	}
}

// Wait is woken when the node goes, and competes.
func (t *nodeTicket) Wait(ctx context.Context) (driver.Verdict, error) {
	for {
		t.mu.Lock()
		err := t.overLocked()
		tried := t.node != "" || t.creating != nil // by a wait that has ended since: the node may be our own
		t.mu.Unlock()
		if err == nil && !tried {
			err = t.await(ctx)
		}
		if err != nil {
			return driver.Verdict{}, err
		}
		taken, err := t.attempt(ctx)
		if err != nil {
			return driver.Verdict{}, err
		}
		if !taken {
			return t.held(ctx)
		}
	}
}

// await returns when the node has gone, or may have. A node that we may not read is
// watched by all of the root: see watchAll.
func (t *nodeTicket) await(ctx context.Context) error {
	l := &listener{wake: func(bool) { t.signal.Notify() }}
	if t.unreadable {
		root := t.session.backend.opts.Root
		defer t.session.watches.remove(root, l)
		names, err := t.session.watchAll(ctx, root, l)
		if err != nil || !slices.Contains(names, path.Base(t.path)) {
			return err
		}
		return t.waitSignal(ctx)
	}
	defer t.session.watches.remove(t.path, l)
	exists, err := t.session.watch(ctx, t.path, l)
	if errors.Is(err, zk.ErrNoAuth) {
		t.unreadable = true
		return t.await(ctx)
	}
	if err != nil || !exists {
		return err
	}
	return t.waitSignal(ctx)
}

// search is ephemeralNode.find; what ticket.search says of it is true here as well.
func (t *nodeTicket) search(ctx context.Context) (node string, czxid int64, err error) {
	if err := t.session.conn.catchUp(ctx); err != nil {
		return "", 0, err
	}
	czxid, err = t.lookAt(ctx, t.path)
	if czxid == 0 {
		return "", 0, err
	}
	return t.path, czxid, nil
}

// lookAt is ephemeralNode.look. The path is shared, and even one client may try it twice: the
// ID in the data says whose node it is.
func (t *nodeTicket) lookAt(ctx context.Context, node string) (czxid int64, err error) {
	n, err := t.session.get(ctx, node)
	if err != nil && err != zk.ErrNoNode && err != zk.ErrNoAuth { // NoAuth: ours we may read
		return 0, explain("look at the lock's node", err)
	}
	var r record
	if json.Unmarshal(n.data, &r) != nil || r.ID != t.request.ID || n.stat.EphemeralOwner != t.session.zk.SessionID() {
		return 0, nil
	}
	return n.stat.Czxid, nil
}
