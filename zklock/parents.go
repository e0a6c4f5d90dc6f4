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
	p.known[path] = true
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
	_, err := call(ctx, c, func() (string, error) {
		if o.Dialect == DialectKazoo {
			return c.zk.Create(path, nil, zk.FlagPersistent, o.acl())
		}
		return c.zk.CreateContainer(path, nil, zk.FlagContainer, o.acl())
	})
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
		_, err := call(ctx, c, func() (string, error) {
			return c.zk.Create(path, nil, zk.FlagPersistent, o.acl())
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
		return nil
	}
	found, err := call(ctx, c, func() (bool, error) {
		found, _, err := c.zk.Exists(path)
		return found, err
	})
	if err == nil && !found {
		err = denied // else a caller that needs the root would find it missing and ask again
	}
	return explain("create the root "+path, err)
}
