package zklock

import (
	"context"
	"strings"
	"sync"

	"github.com/go-zookeeper/zk"
)

// parents makes the nodes under which the entries are.
type parents struct {
	mu    sync.Mutex
	known map[string]bool // seen to exist; some may have vanished since
	root  bool            // so has the root, which stays
}

// mostKnown bounds the memory of names. What is forgotten costs one request.
const mostKnown = 4096

func (p *parents) has(path string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known[path]
}

func (p *parents) note(path string, there bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !there {
		delete(p.known, path)
		return
	}
	if p.known == nil || len(p.known) >= mostKnown {
		p.known = map[string]bool{}
	}
	p.known[path], p.root = true, true
}

// send sends the request to make the node of a lock and does not wait for the answer. What this
// session requests next is behind it at the server, which serves the requests of a session in
// their order: an entry under the node needs no round trip more than one under a node that is
// there. (A multi of both would be one transaction less, but the library's has no containers.)
//
// If it fails, the entry's create says ErrNoNode, and the caller makes the node by make, which
// knows what to do. Without a root that is sure to be the end, and nothing is sent. sent is false
// then.
func (p *parents) send(ctx context.Context, c *conn, o *Options, path string) (sent bool, err error) {
	p.mu.Lock()
	root := p.root
	p.mu.Unlock()
	if !root {
		return false, nil
	}
	if err := c.connected(ctx); err != nil {
		return false, err
	}
	request, done := c.trackCreate(path), make(chan struct{})
	go func() {
		defer close(done)
		err := createLockNode(c, o, path)
		c.pending.Delete(path)
		if err == nil || err == zk.ErrNodeExists {
			p.note(path, true) // true, also if the caller has gone
		}
	}()
	select {
	case <-request.sent:
	case <-done: // another ticket of the session makes the same node, and the monitor sees one for both
	case <-ctx.Done():
		return false, ctx.Err()
	case <-c.ended:
		return false, c.over()
	}
	return true, nil
}

// make makes the node under which a lock's entries are, and the root. The former is a
// container: the servers remove it some time after its last child has gone (they look once
// a minute), and a create that meets that moment has it made again. The root stays.
func (p *parents) make(ctx context.Context, c *conn, o *Options, path string) error {
	err := lockNode(ctx, c, o, path)
	if err == zk.ErrNoNode {
		if err := makeRoot(ctx, c, o); err != nil {
			return err
		}
		err = lockNode(ctx, c, o, path)
	}
	if err == nil || err == zk.ErrNodeExists {
		p.note(path, true)
		return nil
	}
	return explain("create the lock's node "+path, err)
}

func lockNode(ctx context.Context, c *conn, o *Options, path string) error {
	return c.do(ctx, func() error { return createLockNode(c, o, path) })
}

func createLockNode(c *conn, o *Options, path string) (err error) {
	if o.Dialect == DialectKazoo {
		_, err = c.zk.Create(path, nil, zk.FlagPersistent, o.acl())
	} else {
		if err = c.beginCreate(); err != nil {
			return err
		}
		defer c.creating.Done()
		_, err = c.zk.CreateContainer(path, nil, zk.FlagContainer, o.acl())
	}
	return err
}

// makeRoot makes the root and what is missing above it.
func makeRoot(ctx context.Context, c *conn, o *Options) error {
	path := ""
	var denied error
	for component := range strings.SplitSeq(strings.Trim(o.Root, "/"), "/") {
		if component == "" {
			return nil // the root is "/"
		}
		path += "/" + component
		var data []byte
		if path == o.Root && o.Strategy == StrategyQueue {
			data = formatText
		}
		_, err := call(ctx, c, func() (string, error) {
			return c.zk.Create(path, data, zk.FlagPersistent, o.acl())
		})
		// Above the root nothing may be ours to make, though it is there; and the servers look
		// at the permission first.
		switch {
		case err == zk.ErrNoAuth:
			denied = err
		case err == zk.ErrNoNode && denied != nil: // what is denied is not there
			return explain("create the root "+o.Root, denied)
		case err != nil && err != zk.ErrNodeExists:
			return explain("create the root "+path, err)
		default:
			denied = nil
		}
	}
	if denied == nil {
		return c.checkFormat(ctx, o, true) // another may have made it
	}
	stat, err := c.stat(ctx, path)
	if err == nil && stat == nil {
		err = denied // else a caller that needs the root would find it missing and ask again
	}
	return explain("create the root "+path, err)
}
