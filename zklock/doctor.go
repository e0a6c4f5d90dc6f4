package zklock

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/doctor"
)

// Warnings has none: what may be wrong takes more than a request or two.
func (*backend) Warnings(context.Context) ([]driver.Finding, error) { return nil, nil }

// Diagnose examines each server by the four-letter command srvr, which is allowed by default, and
// the session and the root by the usual protocol.
func (b *backend) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	c, err := openConn(ctx, b.opts, b.servers, defaultTTL, nil)
	if err != nil {
		return nil, explain("connect", err)
	}
	defer c.abandon()
	x := &doctor.Report{}
	if err := c.checkFormat(ctx, b.opts, false); errors.Is(err, driver.ErrInvalid) {
		x.Add(driver.Bad, "format", err.Error(), "one version of hasp for all clients of a root")
	}
	if err := b.diagnoseStore(ctx, c, x); err != nil {
		return nil, err
	}
	serving := 0
	for _, server := range b.servers {
		if b.diagnoseServer(ctx, server, x) {
			serving++
		}
	}
	x.When(len(b.servers) == 1, driver.Warn, "servers", "one server is named: no lock can be had, and those held are lost, while it is down",
		"name all members of an ensemble of three or five in the URL")
	x.When(serving < len(b.servers), driver.Warn, "servers", fmt.Sprintf("%d of %d servers named do not serve", len(b.servers)-serving, len(b.servers)),
		"start them, or take them out of the URL; a majority must serve")
	return x.Found, ctx.Err()
}

// diagnoseStore looks at what every server would report alike.
func (b *backend) diagnoseStore(ctx context.Context, c *conn, x *doctor.Report) error {
	granted := c.timeout()
	x.When(granted != c.asked, driver.Warn, "session timeout",
		fmt.Sprintf("%s was asked, %s granted: servers grant from minSessionTimeout to maxSessionTimeout, 2 to 20 ticks unless set", c.asked, granted),
		"ask for a ttl in that range, or change it in zoo.cfg")
	x.Else("session timeout", fmt.Sprintf("%s, as asked", granted))
	if err := b.diagnoseRoot(ctx, c, x); err != nil || b.opts.Strategy != StrategyQueue {
		return err
	}
	longest, used, err := b.longest(ctx, c)
	if err != nil {
		return err
	}
	diagnoseWaiters(longest, x)
	return b.diagnoseDialects(ctx, c, used, x)
}

// diagnoseWaiters checks the longest queue. A list of its entries, of about 60 bytes each, must
// fit into jute.maxbuffer, or no new client can be told who is in front.
func diagnoseWaiters(longest int32, x *doctor.Report) {
	waiters := fmt.Sprintf("the longest queue has %d entries", longest)
	x.When(longest > manyWaiters, driver.Warn, "waiters", waiters+"; some 15,000 meet the limit of jute.maxbuffer, 1 MB unless set, and then no client can enter",
		"have fewer waiters per name, or raise jute.maxbuffer on the servers")
	x.Else("waiters", waiters)
}

// defaultTTL: a client asks for it unless it was told otherwise.
const defaultTTL = 10 * time.Second

// diagnoseRoot looks at who may change the nodes.
func (b *backend) diagnoseRoot(ctx context.Context, c *conn, x *doctor.Report) error {
	root := b.opts.Root
	acl, err := call(ctx, c, func() ([]zk.ACL, error) {
		acl, _, err := c.zk.GetACL(root)
		return acl, err
	})
	if err != nil && err != zk.ErrNoNode && err != zk.ErrNoAuth {
		return explain("read the ACL of "+root, err)
	}
	world := slices.ContainsFunc(acl, func(a zk.ACL) bool {
		return a.Scheme == "world" && a.Perms&(zk.PermCreate|zk.PermDelete|zk.PermWrite) != 0
	})
	x.When(err == zk.ErrNoNode, driver.Info, "acl", root+" does not exist yet; the first lock makes it", "")
	x.When(err == zk.ErrNoAuth, driver.Bad, "acl", "no permission to look at "+root, "give the user and password it was made with, or have its ACL changed")
	x.When(world, driver.Warn, "acl", root+" is open to the world: everyone who reaches a server can take, break and forge locks",
		"give a user and a password, so that nodes are made for that identity only, and setAcl on the root")
	x.Else("acl", root+" can be changed by its identities only")
	return nil
}

// longest is how many entries the busiest of the root's locks has, and used the nodes of
// those that are in use: of all, or of the first thousand the server names.
func (b *backend) longest(ctx context.Context, c *conn) (longest int32, used []string, _ error) {
	names, err := c.childrenOf(ctx, b.opts.Root)
	if err == zk.ErrNoNode || err == zk.ErrNoAuth { // diagnoseRoot has reported it
		return 0, nil, nil
	}
	if err != nil {
		return 0, nil, explain("list "+b.opts.Root, err)
	}
	names = slices.DeleteFunc(names, func(n string) bool { _, ok := b.opts.lockName(n); return !ok })
	counts := make([]int32, min(len(names), 1000))
	err = each(ctx, len(counts), func(i int) error {
		stat, err := c.stat(ctx, path.Join(b.opts.Root, names[i]))
		if stat != nil {
			counts[i] = stat.NumChildren
		}
		return explain("look at "+names[i], err)
	})
	for i, n := range counts {
		if n > 0 {
			used = append(used, path.Join(b.opts.Root, names[i]))
		}
	}
	return slices.Max(append(counts, 0)), used, err
}

// diagnoseDialects looks for locks with entries in another dialect than this client's.
func (b *backend) diagnoseDialects(ctx context.Context, c *conn, used []string, x *doctor.Report) error {
	found := make([]string, min(len(used), mostListed))
	err := each(ctx, len(found), func(i int) error {
		names, err := c.childrenOf(ctx, used[i])
		if err != nil && err != zk.ErrNoNode {
			return explain("list "+used[i], err)
		}
		if node, writer := b.opts.Dialect.foreignEntry(names); node != "" {
			found[i] = fmt.Sprintf("under %s stands %s, in %s; this client has dialect=%s, and neither sees the other", used[i], node, writer, b.opts.Dialect)
		}
		return nil
	})
	for _, text := range found {
		if text != "" {
			x.Add(driver.Warn, "dialects", text, "let all clients of a path use one dialect, or give each its own path")
		}
	}
	return err
}

// diagnoseServer asks one server. serves is false if it does not answer or has no quorum.
func (b *backend) diagnoseServer(ctx context.Context, server string, x *doctor.Report) (serves bool) {
	reply, err := b.fourLetterWord(ctx, server, "srvr")
	if err != nil {
		x.Add(driver.Bad, server+" reach", err.Error(), "see that it runs and that this machine may connect")
		return false
	}
	facts := parseTable(reply, ": ")
	if notAllowed(reply) {
		x.Add(driver.Info, server+" commands", "srvr is not allowed", "allow srvr in 4lw.commands.whitelist, to have the version and the role told")
		return true
	}
	version, _, _ := strings.Cut(facts["Zookeeper version"], ",")
	x.When(outdated(version, 3, 5), driver.Bad, server+" version", version+", without container nodes", "3.5.3 or newer is needed")
	x.When(version != "", driver.Info, server+" version", version+", "+facts["Mode"], "")
	x.When(facts["Mode"] == "", driver.Bad, server+" mode", "it does not serve: "+strings.TrimSpace(reply), "a majority of the ensemble must run and see each other")
	waiting, _ := strconv.Atoi(facts["Outstanding"])
	x.When(waiting > mostOutstanding, driver.Warn, server+" load", fmt.Sprintf("%d requests wait to be answered", waiting), "give it a faster disk for its log, or less to do")
	return facts["Mode"] != ""
}

const (
	manyWaiters     = 5000
	mostListed      = 200 // locks whose entries are listed
	mostOutstanding = 100
)

// parseTable reads lines of key and value.
func parseTable(reply, sep string) map[string]string {
	t := map[string]string{}
	for line := range strings.Lines(reply) {
		if k, v, ok := strings.Cut(strings.TrimRight(line, "\r\n"), sep); ok {
			t[k] = v
		}
	}
	return t
}

// outdated compares "3.8.0-..." with a major and minor version; what it cannot read is new.
func outdated(version string, major, minor int) bool {
	var a, b int
	if n, _ := fmt.Sscanf(version, "%d.%d", &a, &b); n != 2 {
		return false
	}
	return a < major || a == major && b < minor
}
