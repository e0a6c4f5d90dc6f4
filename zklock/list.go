package zklock

import (
	"context"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp/driver"
)

// listConcurrency is how many reads of a listing are under way together.
const listConcurrency = 32

// List reads the children and then the data of the first: for people, not for deciding.
func (b *backend) List(ctx context.Context, name string, limit int) ([]driver.Entry, error) {
	node, err := b.opts.path(name)
	if err != nil {
		return nil, err
	}
	return onAnyConn(ctx, b, func(c *conn) ([]driver.Entry, error) {
		if err := c.catchUp(ctx); err != nil {
			return nil, err
		}
		return b.list(ctx, c, name, node, limit)
	})
}

// catchUp has the server that we are connected to apply all that has reached the leader so far.
// It may be behind, and would not show an entry that its owner has been told of. A client that
// decides from a list does not need it: its own node is in there, and all that came before.
//
// The request is that of a renewal: it changes nothing, is decided behind all others by a majority,
// and our server answers when it has applied it. ZooKeeper's own sync is cheaper, and not enough:
// the leader answers its own clients' syncs like reads, and may have decided something without
// having applied it yet, when a follower already has. TestListIsNotBehind finds that on a busy
// machine.
func (c *conn) catchUp(ctx context.Context) error {
	return explain("catch up", c.do(ctx, c.askMajority))
}

// askMajority makes a request that changes nothing and that only a majority can answer.
func (c *conn) askMajority() error {
	_, err := c.zk.Multi(&zk.CheckVersionRequest{Path: "/", Version: -1})
	if err == zk.ErrNoAuth {
		err = nil // "/" is not for us to see; that, too, is a majority's answer
	}
	return err
}

func (b *backend) list(ctx context.Context, c *conn, name, node string, limit int) (_ []driver.Entry, err error) {
	var queued []child
	if b.opts.Strategy == StrategyNode {
		queued = []child{{units: driver.Whole, capacity: driver.Whole}}
	} else if queued, err = b.entries(ctx, c, node); err != nil {
		return nil, err
	}
	if limit == 0 {
		limit = len(queued)
	}
	// An entry that has left since the children were listed has no data any more, and the next take
	// its place.
	var entries []driver.Entry
	for len(entries) < limit && len(queued) > 0 {
		n := min(limit-len(entries), len(queued))
		read, err := b.readAll(ctx, c, name, node, queued[:n])
		if err != nil {
			return nil, err
		}
		entries, queued = append(entries, read...), queued[n:]
	}
	return entries, nil
}

// readAll reads the entries of a lock, without those that have left.
func (b *backend) readAll(ctx context.Context, c *conn, name, node string, queued []child) ([]driver.Entry, error) {
	entries := make([]driver.Entry, len(queued))
	err := each(ctx, len(queued), func(i int) error {
		var err error
		entries[i], err = b.read(ctx, c, path.Join(node, queued[i].name))
		e := &entries[i]
		e.Name, e.Units, e.Capacity = name, queued[i].units, queued[i].capacity
		if e.ID == "" {
			e.ID = queued[i].guid.uuid() // another library's
		}
		return err
	})
	return slices.DeleteFunc(entries, func(e driver.Entry) bool { return e.Seq == 0 }), err
}

// entries lists those under a lock's node, oldest first.
func (b *backend) entries(ctx context.Context, c *conn, node string) ([]child, error) {
	names, err := c.childrenOf(ctx, node)
	if err == zk.ErrNoNode {
		return nil, nil
	}
	return b.opts.Dialect.parseAll(names), explain("list", err)
}

// read reads one entry; Seq is 0 if it does not exist.
func (b *backend) read(ctx context.Context, c *conn, node string) (e driver.Entry, _ error) {
	n, err := c.get(ctx, node)
	if err == nil && (n.stat.EphemeralOwner != 0 || b.opts.Strategy == StrategyQueue) {
		fill(&e, n)
		if b.opts.Strategy == StrategyNode && e.ID == "" {
			e.ID = heldSince(e.Seq).uuid()
		}
	}
	if err == zk.ErrNoNode {
		err = nil
	}
	return e, explain("read", err)
}

// each runs fn for 0..n-1, several at once, and returns the first error.
func each(ctx context.Context, n int, fn func(i int) error) error {
	if n == 1 {
		return fn(0)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(n, listConcurrency) {
		wg.Go(func() {
			for i := range next {
				if err := fn(i); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := 0; i < n && ctx.Err() == nil; i++ {
		next <- i
	}
	close(next)
	wg.Wait()
	return context.Cause(ctx)
}

// Names lists the children of the root that have entries. An empty one is only waiting for
// the servers to remove it.
func (b *backend) Names(ctx context.Context, prefix string, yield func(string) bool) error {
	nodes, err := onAnyConn(ctx, b, func(c *conn) ([]string, error) {
		if err := c.catchUp(ctx); err != nil {
			return nil, err
		}
		return c.childrenOf(ctx, b.opts.Root)
	})
	if err == zk.ErrNoNode {
		return nil
	}
	if err != nil {
		return explain("list names", err)
	}
	var names []string
	for _, n := range nodes {
		if name, ok := b.opts.lockName(n); ok && strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	// In pieces, so that a caller that has seen enough need not wait for the rest.
	for piece := range slices.Chunk(names, 8*listConcurrency) {
		used := make([]bool, len(piece))
		if err := each(ctx, len(piece), func(i int) (err error) {
			used[i], err = onAnyConn(ctx, b, func(c *conn) (bool, error) { return b.used(ctx, c, piece[i]) })
			return err
		}); err != nil {
			return err
		}
		for i, name := range piece {
			if used[i] && !yield(name) {
				return nil
			}
		}
	}
	return nil
}

// used reports whether a name has an entry.
func (b *backend) used(ctx context.Context, c *conn, name string) (bool, error) {
	node, err := b.opts.path(name)
	if err != nil {
		return false, err
	}
	if b.opts.Strategy == StrategyNode {
		e, err := b.read(ctx, c, node)
		return e.Seq != 0, err
	}
	queued, err := b.entries(ctx, c, node)
	return len(queued) > 0, err
}
