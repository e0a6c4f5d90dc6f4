package zklock

import (
	"context"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp/driver"
)

// Publish replaces the value in the node's data, at the version that we know of.
//
// An attempt whose caller's context has ended may be carried out at any later time: its goroutine
// may not have handed it to the library, and a server that stood still may deliver it when the
// session has long moved to another. By then a later value may have been confirmed, and the
// older one must not replace it. Each write changes the version, so that of the attempts made
// at one version a single one is applied: once the later one is, the older one is refused.
func (n *ephemeralNode) Publish(ctx context.Context, value []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for {
		node, err := n.ownPath()
		if err != nil {
			return err
		}
		n.mu.Lock()
		version, holding := n.version, n.holding
		n.mu.Unlock()
		if !holding {
			return errNotHeld
		}
		now, err := call(ctx, n.session.conn, func() (int32, error) {
			stat, err := n.session.zk.Set(node, encodeRecord(&n.request, value), version)
			if err != nil {
				return 0, err
			}
			return stat.Version, nil
		})
		if err == zk.ErrBadVersion { // an older attempt was applied, or another client has written
			now, err = n.versionOf(ctx, node)
			if err != nil {
				return err
			}
			n.noteVersion(now)
			continue
		}
		if err == zk.ErrNoNode {
			return n.nodeDeleted()
		}
		if err == zk.ErrNoAuth && n.flags&zk.FlagSequence == 0 {
			// The path is shared, and our own node we may write: so it is another's by now. A look
			// says whether.
			if czxid, lookErr := n.look(ctx, node); lookErr == nil && czxid == 0 {
				return n.nodeDeleted()
			}
		}
		if err == nil {
			n.noteVersion(now)
		}
		return explain("publish", err)
	}
}

// versionOf asks for the version of the node's data.
func (n *ephemeralNode) versionOf(ctx context.Context, node string) (int32, error) {
	s := n.session
	if err := s.catchUp(ctx); err != nil { // else the answer might be the version just refused
		return 0, err
	}
	stat, err := s.stat(ctx, node)
	switch {
	case err != nil:
		return 0, explain("publish", err)
	case stat == nil:
		return 0, n.nodeDeleted()
	}
	return stat.Version, nil
}

func (n *ephemeralNode) noteVersion(version int32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.version = max(n.version, version) // answers may be read in another order
}

var _ driver.Publisher = (*ephemeralNode)(nil)
