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
	listen := func(node string) *listener {
		l := &listener{wake: func(bool) {
			select {
			case wake <- struct{}{}:
			default:
			}
		}}
		set = append(set, func() { c.watches.remove(node, l) })
		return l
	}
	if b.opts.Strategy == StrategyNode {
		_, err := c.setConfirmed(ctx, watchKey{node, contents}, listen(node), func() error { _, _, _, err := c.zk.ExistsW(node); return err })
		return remove, err
	}
	for {
		l := listen(node)
		exists, err := c.setConfirmed(ctx, watchKey{node, children}, l, func() error { _, _, _, err := c.zk.ChildrenW(node); return err })
		if err != nil {
			return remove, err
		}
		if exists {
			break
		}
		// That failure has woken us as well, or another's will, who ask for the same; and we know
		// of it. If the node has been made since then, its event has disarmed the watch that is set
		// next, and so that is asked for anew, and finds it.
		c.watches.remove(node, l)
		select {
		case <-wake:
		default:
		}
		// The name was never used, or not for a while: then its making is the next change.
		// Unlike an entry's node it can come again, so a watch left behind is used again.
		made, err := c.watchMaking(ctx, node, listen(node))
		if err != nil || !made {
			return remove, err
		}
	}
	// Listed under the watch, so that the first is that of the state being watched.
	queued, err := b.entries(ctx, c, node)
	if err != nil || len(queued) == 0 || queued[0].units != driver.Whole {
		return remove, err
	}
	first := path.Join(node, queued[0].name)
	_, err = c.setConfirmed(ctx, watchKey{first, contents}, listen(first), func() error { _, _, _, err := c.zk.GetW(first); return err })
	return remove, err
}

// watchMaking has l woken when a node is made that was not there. made says that it is there by
// now: the watch is then one for its data, and does not tell of its children. All who rely on it
// must look. Their caller may have gone by then, so that the request itself fails.
func (c *conn) watchMaking(ctx context.Context, node string, l *listener) (made bool, err error) {
	_, err = c.setConfirmed(ctx, watchKey{node, contents}, l, func() error {
		found, _, _, err := c.zk.ExistsW(node)
		if err == nil && found {
			err = errMade
		}
		return err
	})
	if errors.Is(err, errMade) {
		return true, nil
	}
	return false, err
}

var errMade = errors.New("it was made between two requests")

var (
	_ driver.Watcher = (*backend)(nil)
	_ driver.Namer   = (*backend)(nil)
	_ driver.Evicter = (*backend)(nil)
)
