package zklock

import (
	"context"
	"encoding/json"
	"path"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp/driver"
)

func (c *conn) delete(ctx context.Context, node string) error {
	// With strategy Node another may have come since the look; its holder is told, too.
	return c.do(ctx, func() error { return c.zk.Delete(node, -1) })
}

// evict looks for the entry and has remove delete it, in the lock's node.
func (b *backend) evict(ctx context.Context, name, id string, remove func(c *conn, node, victim string) error) error {
	node, err := b.opts.path(name)
	if err != nil {
		return err
	}
	asked := false
	_, err = onAnyConn(ctx, b, func(c *conn) (struct{}, error) {
		none := struct{}{}
		victim, err := b.findCurrent(ctx, c, node, id)
		if err != nil {
			return none, err
		}
		if victim != "" {
			if err = remove(c, node, victim); err != zk.ErrNoNode {
				asked = true
				return none, explain("evict", err)
			}
		}
		if asked { // by a conn that ended before the answer came
			return none, nil
		}
		return none, errNoEntry
	})
	return err
}

// findCurrent finds an entry at a server that has caught up. If the connection has ended between
// the two requests, another server, which is behind, may have said that there is no such entry.
func (b *backend) findCurrent(ctx context.Context, c *conn, node, id string) (string, error) {
	for {
		connection := c.watches.current()
		if err := c.catchUp(ctx); err != nil {
			return "", err
		}
		victim, err := b.find(ctx, c, node, id)
		if err != nil || victim != "" || c.watches.current() == connection {
			return victim, err
		}
	}
}

// find returns the node of an entry under a lock's node; "" if there is none.
func (b *backend) find(ctx context.Context, c *conn, node, id string) (string, error) {
	if b.opts.Strategy == StrategyNode {
		e, err := b.read(ctx, c, node)
		if err != nil || e.Seq == 0 || e.ID != id {
			return "", err
		}
		return node, nil
	}
	queued, err := b.entries(ctx, c, node)
	for _, e := range queued {
		if e.guid == guidOf(id) || e.guid.uuid() == id {
			return path.Join(node, e.name), nil
		}
	}
	return "", err
}

// evictionNote is the data of a lock's node with strategy Queue, which no other library uses (Curator
// and kazoo's locks leave it empty; a semaphore of kazoo's writes a number there, which stays). The
// note vanishes with the node. With strategy Node all there is of a lock goes with its holder.
type evictionNote struct {
	Evicted string `json:"evicted"` // the note
}

// noteOf reads the data of a lock's node. free says that it is ours to write.
func noteOf(data []byte) (note string, free bool) {
	var n evictionNote
	if len(data) == 0 {
		return "", true
	}
	free = json.Unmarshal(data, &n) == nil && n.Evicted != ""
	return n.Evicted, free
}

// Evict deletes the node of an entry, whose owner is told by the watch on it, and sets the note in one transaction: if the answer
// is lost both were done, or neither. The note replaces the data as it was read, so that
// what another client puts there meanwhile stays; entries come and go without changing its
// version. Where the data is not ours to write, or we may not, the eviction is done without.
func (b *backend) Evict(ctx context.Context, name, id, note string) error {
	if note == "" || b.opts.Strategy == StrategyNode {
		return b.evict(ctx, name, id, func(c *conn, _, victim string) error { return c.delete(ctx, victim) })
	}
	data, err := json.Marshal(evictionNote{note})
	if err != nil {
		return err
	}
	return b.evict(ctx, name, id, func(c *conn, node, victim string) error {
		for {
			now, err := c.get(ctx, node)
			if err != nil {
				return err
			}
			if _, free := noteOf(now.data); !free {
				return c.delete(ctx, victim)
			}
			done, err := call(ctx, c, func() ([]zk.MultiResponse, error) {
				return c.zk.Multi(
					&zk.DeleteRequest{Path: victim, Version: -1},
					&zk.SetDataRequest{Path: node, Data: data, Version: now.stat.Version},
				)
			})
			switch {
			case err == zk.ErrBadVersion: // of the node; the entry's was not asked for
			case err == zk.ErrNoAuth && len(done) == 2 && done[0].Error == nil: // for the note alone
				return c.delete(ctx, victim)
			default:
				return err
			}
		}
	})
}

// LastEviction reads the note.
func (b *backend) LastEviction(ctx context.Context, name string) (string, error) {
	if b.opts.Strategy == StrategyNode {
		return "", driver.ErrUnsupported
	}
	node, err := b.opts.path(name)
	if err != nil {
		return "", err
	}
	return onAnyConn(ctx, b, func(c *conn) (string, error) {
		if err := c.catchUp(ctx); err != nil {
			return "", err
		}
		n, err := c.get(ctx, node)
		if err == zk.ErrNoNode {
			return "", nil
		}
		note, _ := noteOf(n.data)
		return note, explain("look for evictions", err)
	})
}
