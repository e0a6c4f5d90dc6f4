package zklock

import (
	"context"
	"fmt"
	"path"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp/driver"
)

// ticket is a place in a queue: an ephemeral sequential node under the lock's node.
type ticket struct {
	ephemeralNode
	parent string // the lock's node

	// Guarded by ephemeralNode.mu.
	decided         bool           // by a list with our node: ahead is one, and not only empty
	ahead           []driver.Entry // enough of the last list (Dialect.ahead); the IDs are names of nodes
	deletedBlockers []string       // of those, found to be gone since
	unreadable      []string       // of those, that we may not read; nearly always none
}

func newTicket(s *session, r driver.Request) *ticket {
	o := s.backend.opts
	parent, err := o.path(r.Name)
	t := &ticket{parent: parent}
	t.ephemeralNode = ephemeralNode{
		session: s, request: r, invalid: err,
		path: parent + "/" + o.Dialect.prefix(&r), flags: zk.FlagEphemeralSequential, acl: o.acl(),
		look: t.lookAt, find: t.search,
		// The name of the node is ours alone for ever: what is deleted is ours.
		erase: func(node string) error { return s.zk.Delete(node, -1) },
	}
	return t
}

// firstBlocker returns the first node of a queue behind which we would not hold, "" if there is
// none, or why we may not enter it at all.
func (t *ticket) firstBlocker(names []string) (node string, err error) {
	if err := t.checkForeign(names); err != nil {
		return "", err
	}
	ahead := entries(t.dialect().parseAll(names))
	if err := driver.CheckKind(ahead, t.request); err != nil {
		return "", err
	}
	if held, _ := driver.Decide(ahead, t.request); held {
		return "", nil
	}
	return ahead[0].ID, nil
}

func (t *ticket) dialect() Dialect { return t.session.backend.opts.Dialect }

// list reads the names of the children; none if the lock's node does not exist.
func (t *ticket) list(ctx context.Context) ([]string, error) {
	names, err := t.session.childrenOf(ctx, t.parent)
	if err == zk.ErrNoNode {
		return nil, nil
	}
	return names, explain("list", err)
}

// checkForeign refuses a lock under whose node another client queues in another dialect. It
// comes too late if the other one comes later than we: then there are two queues, and the
// doctor reports it.
func (t *ticket) checkForeign(names []string) error {
	node, writer := t.dialect().foreignEntry(names)
	if node == "" {
		return nil
	}
	return fmt.Errorf("%w: under %s stands %s, in %s: with dialect=%s neither would see the other; let all clients of a path use one dialect",
		driver.ErrMismatch, t.parent, node, writer, t.dialect())
}

// entries makes the entries for Decide: the ID is the name of the node.
func entries(cs []child) []driver.Entry {
	es := make([]driver.Entry, len(cs))
	for i, c := range cs {
		es[i].Request = driver.Request{ID: c.name, Units: c.units, Capacity: c.capacity}
	}
	return es
}

// decide decides by a list that was made when our node existed. It has every entry with a
// smaller number that had not left: numbers are given out in the order of creation, and a
// session never reads a state older than what it has been told of.
func (t *ticket) decide(ctx context.Context, names []string) (driver.Verdict, error) {
	node, err := t.ownPath()
	if err != nil {
		return driver.Verdict{}, err
	}
	before, between, found := t.dialect().ahead(names, path.Base(node), t.request.Units == t.request.Capacity)
	if !found {
		return driver.Verdict{}, t.nodeDeleted()
	}
	ahead := entries(before)
	err = t.checkForeign(names)
	if err == nil {
		err = driver.CheckKind(ahead, t.request)
	}
	if err != nil {
		return driver.Verdict{}, t.giveBack(ctx, err)
	}
	t.mu.Lock()
	t.decided, t.ahead, t.deletedBlockers = true, ahead, nil
	t.mu.Unlock()
	held, _ := driver.Decide(ahead, t.request)
	if !held && t.request.NoWait {
		if err := t.Leave(ctx); err != nil {
			return driver.Verdict{}, err
		}
		return driver.Verdict{Holder: t.session.ownerOf(ctx, t.parent+"/"+ahead[0].ID)}, nil
	}
	if held {
		return t.held(ctx)
	}
	v := driver.Verdict{}
	if between == 0 || ahead[0].Units == ahead[0].Capacity { // else some of those between may hold
		v.Place = driver.Place(ahead, t.request.Capacity) + between
	}
	return v, nil
}
