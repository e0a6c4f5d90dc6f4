package zklock

import (
	"context"
	"fmt"

	"github.com/go-zookeeper/zk"
)

// call makes one request by a function of the client library, which blocks until there is
// an answer, the connection breaks or the library is closed. It returns with ctx or with
// the session; the request goes on then, and fn must look after its late result itself.
//
// It waits for a connection first: a request that the library queues while it has none
// would be sent long after its caller has gone.
func call[T any](ctx context.Context, c *conn, fn func() (T, error)) (T, error) {
	if err := c.connected(ctx); err != nil {
		var none T
		return none, err
	}
	return launch(ctx, c, fn)
}

// do is call for requests that are answered by an error alone.
func (c *conn) do(ctx context.Context, fn func() error) error {
	_, err := call(ctx, c, func() (struct{}, error) { return struct{}{}, fn() })
	return err
}

// childrenOf reads the names of a node's children.
func (c *conn) childrenOf(ctx context.Context, path string) ([]string, error) {
	return call(ctx, c, func() ([]string, error) {
		names, _, err := c.zk.Children(path)
		return names, err
	})
}

// znode is a node as it was read. stat is not nil, also after an error.
type znode struct {
	data []byte
	stat *zk.Stat
}

func (c *conn) get(ctx context.Context, path string) (znode, error) {
	n, err := call(ctx, c, func() (n znode, err error) {
		n.data, n.stat, err = c.zk.Get(path)
		return n, err
	})
	if err != nil {
		n = znode{stat: &zk.Stat{}}
	}
	return n, err
}

// stat reads what there is of a node but its data; nil if it does not exist.
func (c *conn) stat(ctx context.Context, path string) (*zk.Stat, error) {
	return call(ctx, c, func() (*zk.Stat, error) {
		found, stat, err := c.zk.Exists(path)
		if err != nil || !found {
			return nil, err
		}
		return stat, nil
	})
}

// launch is call for callers that have seen that there is a connection: fn does run.
func launch[T any](ctx context.Context, c *conn, fn func() (T, error)) (T, error) {
	var none T
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1) // one slot: the caller may have stopped waiting
	go func() {
		v, err := fn()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		if over := c.over(); r.err != nil && over != nil {
			return none, over // what the library says then is only how it was closed
		}
		return r.v, endedFirst(ctx, r.err)
	case <-ctx.Done():
		return none, ctx.Err()
	case <-c.ended:
		return none, c.over()
	}
}

// endedFirst is err, or the end of ctx where that came first: a connection broke, but the
// caller has given up meanwhile.
func endedFirst(ctx context.Context, err error) error {
	if ctx.Err() != nil && !answered(err) {
		return ctx.Err()
	}
	return err
}

// connected waits for a connection.
func (c *conn) connected(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := c.over(); err != nil {
		return err
	}
	select {
	case <-c.whenReady():
		return nil
	case <-c.ended:
		return c.over()
	case <-ctx.Done():
		if _, last := c.dial.tried(); last != nil {
			return fmt.Errorf("%w (no connection: %w)", ctx.Err(), last)
		}
		return ctx.Err()
	}
}
