package zklock

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp/driver"
)

// identityNode is the node under the root that tells the store from every other: its data is a
// random text, written once and never changed. No encoded name looks like it.
//
// Nothing that is there already would do. An ensemble has no id; its addresses are
// many; what a root's stat says (czxid, ctime) needs no node of ours, but two ensembles set up
// side by side by one script may well agree in it, and "/" has none.
const identityNode = ".hasp"

// Identity tells locks of this root, strategy and way to write names apart from all others.
// Curator's two dialects see each other's entries, and so are one; kazoo's are another, which
// is told by an error where they meet.
func (b *backend) Identity(ctx context.Context) (string, error) {
	id, err := onAnyConn(ctx, b, func(c *conn) (string, error) { return b.identity(ctx, c) })
	if err != nil {
		return "", err
	}
	kind := string(b.opts.Strategy)
	if b.opts.Dialect == DialectKazoo {
		kind = string(DialectKazoo)
	}
	if b.opts.PlainNames { // they meet the encoded ones where these are the same, and only there
		kind += "-plain"
	}
	return "zookeeper/" + id + "/" + kind, nil
}

// identity reads the node, and makes it if there is none. The first client with the
// permission to make nodes under the root does that, be it with other settings of ours: the
// servers let one of several who try at once have it, and each returns what was read. A
// create whose answer is lost does no harm for the same reason.
//
// Every client may read it, since clients with and without an identity may share a root, and
// none may change it. It can be removed by a client that may remove nodes under the root: from a
// copy of an ensemble's data, which would be taken for the original.
func (b *backend) identity(ctx context.Context, c *conn) (string, error) {
	node := b.opts.child(identityNode)
	for {
		// Our server may be behind; a client that may not make it must be able to rely on what it sees.
		if err := c.catchUp(ctx); err != nil {
			return "", err
		}
		id, err := call(ctx, c, func() (string, error) {
			data, stat, err := c.zk.Get(node)
			if err != nil {
				return "", err
			}
			// With the czxid, so that a copy made by a tool is not taken for the original.
			return string(data) + "-" + strconv.FormatInt(stat.Czxid, 16), nil
		})
		if err == nil && (len(id) > 100 || strings.Trim(id, identityLetters) != "") {
			return "", fmt.Errorf("%w: %s holds something else than the identity that hasp writes; remove it", driver.ErrRefused, node)
		}
		if err != zk.ErrNoNode {
			return id, explain("read "+node, err)
		}
		_, err = call(ctx, c, func() (string, error) {
			return c.zk.Create(node, []byte(strings.ToLower(rand.Text())), zk.FlagPersistent, zk.WorldACL(zk.PermRead))
		})
		switch {
		case err == zk.ErrNoNode:
			err = makeRoot(ctx, c, b.opts)
		case err == zk.ErrNodeExists:
			err = nil
		case err == nil || answered(err):
			err = explain("make "+node+", which tells this store from others, once", err)
		case c.over() == nil:
			c.backOff() // the answer is lost; the next read shows whether it was made
			err = nil
		}
		if err != nil {
			return "", err
		}
	}
}

const identityLetters = "abcdefghijklmnopqrstuvwxyz0123456789-"

var _ driver.Identifier = (*backend)(nil)
