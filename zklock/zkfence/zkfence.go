// Package zkfence checks writes in ZooKeeper with a fencing token: the greatest token seen is the
// data of one node for each lock name, and every multi-operation first checks that this node's
// version is still the one that the writer has advanced to. That is one round trip, with two
// operations more.
//
//	fence, err := zkfence.With(ctx, conn, lease, nil)
//	...read, think...
//	_, err = fence.Multi(ctx, &zk.SetDataRequest{Path: "/orders/42", Data: paid, Version: -1})
//
// The nodes are persistent and stay: one for each lock name, with a child that is named after the
// token which has made it. A fence that is removed begins again at version 0, which an earlier
// holder may remember; the second operation checks that child, and so the holder is refused once
// another token has made the fence anew. Before that a removed fence knows of no token: remove one
// only when no earlier holder is left.
package zkfence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/fencing/retry"
)

// DefaultRoot is the node under which the fences are.
const DefaultRoot = "/hasp/fence"

// Options are the settings of a Writer. nil or the zero value means the defaults.
type Options struct {
	// Root is the node under which the fences are. It is created if it does not exist. Default:
	// DefaultRoot.
	Root string
	// ACL is the ACL of created nodes. A client that may write them may advance. Default: every
	// client may do everything.
	ACL []zk.ACL
}

// Writer writes under one token. Its methods may be called at once from many goroutines.
type Writer struct {
	conn  *zk.Conn
	root  string
	path  string
	acl   []zk.ACL
	name  string
	token uint64
	seen  atomic.Pointer[node] // the fence's node while it holds this token
}

// node is the fence's node as it was read: its version and, of all nodes that were ever at its path,
// which it is: the name of its child.
type node struct {
	data    []byte
	version int32
	maker   string
}

// checks are the operations that fail unless the fence is that node at that version.
func (w *Writer) checks(n *node) []any {
	return []any{&zk.CheckVersionRequest{Path: w.path, Version: n.version}, &zk.CheckVersionRequest{Path: w.path + "/" + n.maker}}
}

// maxEncoded keeps names of a usual length readable; longer ones are hashed.
const maxEncoded = 240

// With makes the fence refuse every token smaller than the lease's from now on, and returns the
// Writer of this token. It returns a *fencing.StaleError if the fence has seen a greater token.
// After any other error the fence may have advanced: call With again with the same lease, or give
// the lease up.
//
// The client library has no contexts: when ctx ends, With and Multi return its error, and
// a request that is under way may still be carried out, under the token like any other.
func With(ctx context.Context, conn *zk.Conn, lease fencing.Grant, o *Options) (*Writer, error) {
	name, token := lease.Name(), lease.Token()
	if err := fencing.Check(name, token); err != nil {
		return nil, err
	}
	w := &Writer{conn: conn, root: DefaultRoot, acl: zk.WorldACL(zk.PermAll), name: name, token: token}
	if o != nil && o.Root != "" {
		w.root = o.Root
	}
	if o != nil && o.ACL != nil {
		w.acl = o.ACL
	}
	if !strings.HasPrefix(w.root, "/") || strings.HasSuffix(w.root, "/") || strings.Contains(w.root, "//") {
		return nil, fmt.Errorf("%w: root %q is not an absolute path of a node", fencing.ErrInvalid, w.root)
	}
	encoded, _ := driver.EncodeName(name, maxEncoded)
	w.path = w.root + "/" + encoded
	if err := w.advance(ctx); err != nil {
		return nil, err
	}
	return w, nil
}

// Path returns the path of the fence's node.
func (w *Writer) Path() string { return w.path }

// advance sets the fence to this token, if it holds a smaller one or is absent, and remembers its
// version.
func (w *Writer) advance(ctx context.Context) error {
	return retry.Do(ctx, retry.Tries, func() (bool, error) {
		again, err := w.step(ctx)
		if err != nil && !again && !errors.Is(err, fencing.ErrStale) {
			err = w.about(err)
		}
		return again, err
	})
}

func (w *Writer) step(ctx context.Context) (again bool, err error) {
	text := strconv.FormatUint(w.token, 10)
	child := &zk.CreateRequest{Path: w.path + "/" + text, Acl: w.acl}
	n, err := w.read(ctx)
	if errors.Is(err, zk.ErrNoNode) {
		err := w.multi(ctx, &zk.CreateRequest{Path: w.path, Data: []byte(text), Acl: w.acl}, child)
		switch {
		case errors.Is(err, zk.ErrNodeExists):
			return true, err
		case errors.Is(err, zk.ErrNoNode):
			if rootErr := w.makeRoot(ctx); rootErr != nil {
				return false, rootErr
			}
			return true, err
		case err != nil:
			return false, err
		}
		w.seen.Store(&node{maker: text})
		return false, nil
	}
	if err != nil {
		return false, err
	}
	seen, err := strconv.ParseUint(string(n.data), 10, 64)
	if err != nil {
		return false, fmt.Errorf("the node %s is no fence: it holds %q", w.path, n.data)
	}
	if err := fencing.Compare(w.name, w.token, seen); err != nil {
		return false, err
	}
	if n.maker == "" { // somebody has made it by hand
		err := w.multi(ctx, &zk.CheckVersionRequest{Path: w.path, Version: n.version}, child)
		return err == nil || moved(err), cmp.Or(err, zk.ErrNoNode)
	}
	// A server's reads may be behind the state that the ensemble has agreed on; writes are not. So
	// both next steps are writes, conditional on the version that was read.
	ops := w.checks(n)
	if seen != w.token {
		ops = append(ops, &zk.SetDataRequest{Path: w.path, Data: []byte(text), Version: n.version})
		n.version++ // with every write
	}
	if err := w.multi(ctx, ops...); err != nil {
		return moved(err), err
	}
	w.seen.Store(n)
	return false, nil
}

// moved reports an error that says that the fence is another than the one that was read.
func moved(err error) bool {
	return errors.Is(err, zk.ErrBadVersion) || errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrNodeExists)
}

func (w *Writer) multi(ctx context.Context, ops ...any) error {
	_, err := call(ctx, func() ([]zk.MultiResponse, error) { return w.conn.Multi(ops...) })
	return err
}

// read returns the fence after a sync: without it, after a refused version the server could return
// the old fence again and again. The child comes first: of a node that is made anew in between the
// data are the new one's, the child is the old one's, and so the checks fail.
func (w *Writer) read(ctx context.Context) (*node, error) {
	if _, err := call(ctx, func() (string, error) { return w.conn.Sync(w.path) }); err != nil {
		return nil, err
	}
	return call(ctx, func() (*node, error) {
		makers, _, err := w.conn.Children(w.path)
		if err != nil {
			return nil, err
		}
		data, stat, err := w.conn.Get(w.path)
		if err != nil {
			return nil, err
		}
		slices.Sort(makers) // two may have found none
		return &node{data, stat.Version, strings.Join(makers[:min(len(makers), 1)], "")}, nil
	})
}

// makeRoot makes the nodes above the fence.
func (w *Writer) makeRoot(ctx context.Context) error {
	for i := 1; i <= len(w.root); i++ {
		if i < len(w.root) && w.root[i] != '/' {
			continue
		}
		_, err := call(ctx, func() (string, error) { return w.conn.Create(w.root[:i], nil, 0, w.acl) })
		if err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return fmt.Errorf("make %s: %w", w.root[:i], err)
		}
	}
	return nil
}

// Multi executes all of ops (*zk.CreateRequest, *zk.SetDataRequest, *zk.DeleteRequest,
// *zk.CheckVersionRequest) or none, unless the fence has seen a greater token: then it returns a
// *fencing.StaleError and executes none. The responses are those of ops, also after an error; they
// say which one failed.
func (w *Writer) Multi(ctx context.Context, ops ...any) ([]zk.MultiResponse, error) {
	var responses []zk.MultiResponse
	err := retry.Do(ctx, retry.Tries, func() (bool, error) {
		checks := w.checks(w.seen.Load())
		r, err := call(ctx, func() ([]zk.MultiResponse, error) { return w.conn.Multi(append(checks, ops...)...) })
		if len(r) >= len(checks) && (r[0].Error != nil || r[1].Error != nil) {
			// The version has moved, or the fence was made anew: by a greater token, which advance
			// reports, or by another writer with this one. Nothing was written.
			if err := w.advance(ctx); err != nil {
				return false, err
			}
			return true, cmp.Or(r[0].Error, r[1].Error)
		}
		if len(r) > len(checks) {
			responses = r[len(checks):]
		}
		if err != nil {
			err = w.about(err)
		}
		return false, err
	})
	return responses, err
}

func (w *Writer) about(err error) error {
	return fmt.Errorf("write with token %d of lock %q: %w", w.token, w.name, err)
}

// call makes a request of a library without contexts. It returns when ctx ends; the request then
// continues, and its result is dropped.
func call[T any](ctx context.Context, fn func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	if err := ctx.Err(); err != nil {
		var none T
		return none, err
	}
	done := make(chan result, 1) // one slot: the caller may have stopped waiting
	go func() {
		v, err := fn()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}
