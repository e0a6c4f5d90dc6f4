package zklock

import (
	"context"
	"errors"
	"path"

	"github.com/hasplock/hasp/driver"
)

// Watch follows a name: its list of children, and the data of the first entry if it has
// the lock for itself, since only an elected leader publishes.
func (b *backend) Watch(ctx context.Context, name string, changed func()) error {
	node, err := b.opts.path(name)
	if err != nil {
		return err
	}
	c, err := b.anyConn(ctx)
	if err != nil {
		return err
	}
	wake := make(chan struct{}, 1) // one pending change says all
	for {
		remove, err := b.follow(ctx, c, node, wake)
		if err != nil {
			remove()
			return err
		}
		changed()
		select {
		case <-wake:
			remove()
		case <-ctx.Done():
			remove()
			return ctx.Err()
		case <-c.ended:
			remove()
			return errors.New("watch: the session that it was set in has ended")
		}
	}
}

// follow sets the watches that tell of the next change through wake, and returns what takes their
// listeners away.
func (b *backend) follow(ctx context.Context, c *conn, node string, wake chan struct{}) (remove func(), err error) {
	var set []func()
	remove = func() {
		for _, r := range set {
			r()
		}
	}
	add := func(node string, kind watchKind, request func() error) (bool, error) {
		l := &listener{wake: func(bool) {
			select {
			case wake <- struct{}{}:
			default:
			}
		}}
		set = append(set, func() { c.watches.remove(node, l) })
		return c.set(ctx, watchKey{node, kind}, l, request)
	}
	if b.opts.Strategy == StrategyNode {
		_, err := add(node, contents, func() error { _, _, _, err := c.zk.ExistsW(node); return err })
		return remove, err
	}
	for {
		exists, err := add(node, children, func() error { _, _, _, err := c.zk.ChildrenW(node); return err })
		if err != nil {
			return remove, err
		}
		if exists {
			break
		}
		// That failure has woken us as well, who know of it. If the node has been made since then, its
		// event has disarmed the watch that is set next, and so that is asked for anew, and finds it.
		select {
		case <-wake:
		default:
		}
		// The name was never used, or not for a while: then its making is the next change.
		// Unlike an entry's node it can come again, so a watch left behind is used again.
		created := false
		if _, err := add(node, contents, func() error {
			found, _, _, err := c.zk.ExistsW(node)
			created = found
			return err
		}); err != nil || !created {
			return remove, err
		}
		// It was made between the two requests, and no event will tell of that: who relies on this watch must look, too.
		c.watches.takeBack(watchKey{node, contents})
	}
	// Listed under the watch, so that the first is that of the state being watched.
	queued, err := b.entries(ctx, c, node)
	if err != nil || len(queued) == 0 || queued[0].units != driver.Whole {
		return remove, err
	}
	first := path.Join(node, queued[0].name)
	_, err = add(first, contents, func() error { _, _, _, err := c.zk.GetW(first); return err })
	return remove, err
}

var (
	_ driver.Watcher = (*backend)(nil)
	_ driver.Namer   = (*backend)(nil)
	_ driver.Evicter = (*backend)(nil)
)
