package zklock

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp/driver"
)

// Diagnose examines each server by the four-letter command srvr, which is allowed by default, and
// the session and the root by the usual protocol.
func (b *backend) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	c, err := openConn(ctx, b.opts, b.servers, defaultTTL, nil)
	if err != nil {
		return nil, explain("connect", err)
	}
	defer c.abandon()
	fs, err := b.diagnoseStore(ctx, c)
	if err != nil {
		return nil, err
	}
	serving := 0
	for _, server := range b.servers {
		of, ok := b.diagnoseServer(ctx, server)
		if fs = append(fs, of...); ok {
			serving++
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if len(b.servers) == 1 {
		fs = append(fs, driver.Finding{
			Level: driver.Warn, Subject: "servers", Text: "one server is named: no lock can be had, and those held are lost, while it is down",
			Cure: "name all members of an ensemble of three or five in the URL",
		})
	} else if serving < len(b.servers) {
		fs = append(fs, driver.Finding{
			Level: driver.Warn, Subject: "servers", Text: fmt.Sprintf("%d of %d servers named do not serve", len(b.servers)-serving, len(b.servers)),
			Cure: "start them, or take them out of the URL; a majority must serve",
		})
	}
	return fs, nil
}

// diagnoseStore looks at what every server would report alike.
func (b *backend) diagnoseStore(ctx context.Context, c *conn) ([]driver.Finding, error) {
	fs := b.diagnoseSession(c)
	root, err := b.diagnoseRoot(ctx, c)
	if err != nil {
		return nil, err
	}
	fs = append(fs, root...)
	if b.opts.Strategy == StrategyQueue {
		longest, used, err := b.longest(ctx, c)
		if err != nil {
			return nil, err
		}
		fs = append(fs, diagnoseWaiters(longest))
		mixed, err := b.diagnoseDialects(ctx, c, used)
		if err != nil {
			return nil, err
		}
		fs = append(fs, mixed...)
	}
	return fs, nil
}

// defaultTTL: a client asks for it unless it was told otherwise.
const defaultTTL = 10 * time.Second

// diagnoseSession compares the session timeout with what was asked.
func (b *backend) diagnoseSession(c *conn) []driver.Finding {
	granted := c.timeout()
	f := driver.Finding{Level: driver.Info, Subject: "session timeout", Text: fmt.Sprintf("%s, as asked", granted)}
	if granted != c.asked {
		f.Level = driver.Warn
		f.Text = fmt.Sprintf("%s was asked, %s granted: servers grant from minSessionTimeout to maxSessionTimeout, 2 to 20 ticks unless set", c.asked, granted)
		f.Cure = "ask for a ttl in that range, or change it in zoo.cfg"
	}
	return []driver.Finding{f}
}

// diagnoseRoot looks at who may change the nodes.
func (b *backend) diagnoseRoot(ctx context.Context, c *conn) ([]driver.Finding, error) {
	acl, err := call(ctx, c, func() ([]zk.ACL, error) {
		acl, _, err := c.zk.GetACL(b.opts.Root)
		return acl, err
	})
	switch {
	case err == zk.ErrNoNode:
		return []driver.Finding{{Level: driver.Info, Subject: "root", Text: b.opts.Root + " does not exist yet; the first lock makes it"}}, nil
	case err == zk.ErrNoAuth:
		return []driver.Finding{{
			Level: driver.Bad, Subject: "acl", Text: "no permission to look at " + b.opts.Root,
			Cure: "give the user and password it was made with, or have its ACL changed",
		}}, nil
	case err != nil:
		return nil, explain("read the ACL of "+b.opts.Root, err)
	}
	for _, a := range acl {
		if a.Scheme == "world" && a.Perms&(zk.PermCreate|zk.PermDelete|zk.PermWrite) != 0 {
			return []driver.Finding{{
				Level: driver.Warn, Subject: "acl", Text: b.opts.Root + " is open to the world: everyone who reaches a server can take, break and forge locks",
				Cure: "give a user and a password, so that nodes are made for that identity only, and setAcl on the root",
			}}, nil
		}
	}
	return []driver.Finding{{Level: driver.Info, Subject: "acl", Text: b.opts.Root + " can be changed by its identities only"}}, nil
}

// longest is how many entries the busiest of the root's locks has, and used the nodes of
// those that are in use: of all, or of the first thousand the server names.
func (b *backend) longest(ctx context.Context, c *conn) (longest int32, used []string, _ error) {
	names, err := call(ctx, c, func() ([]string, error) {
		names, _, err := c.zk.Children(b.opts.Root)
		return names, err
	})
	if err == zk.ErrNoNode || err == zk.ErrNoAuth { // diagnoseRoot has reported it
		return 0, nil, nil
	}
	if err != nil {
		return 0, nil, explain("list "+b.opts.Root, err)
	}
	names = slices.DeleteFunc(names, func(n string) bool { _, ok := b.opts.lockName(n); return !ok })
	counts := make([]int32, min(len(names), 1000))
	err = each(ctx, len(counts), func(i int) error {
		n, err := call(ctx, c, func() (int32, error) {
			found, stat, err := c.zk.Exists(path.Join(b.opts.Root, names[i]))
			if err != nil || !found {
				return 0, err
			}
			return stat.NumChildren, nil
		})
		counts[i] = n
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
func (b *backend) diagnoseDialects(ctx context.Context, c *conn, used []string) ([]driver.Finding, error) {
	found := make([]*driver.Finding, min(len(used), mostListed))
	err := each(ctx, len(found), func(i int) error {
		names, err := call(ctx, c, func() ([]string, error) {
			names, _, err := c.zk.Children(used[i])
			return names, err
		})
		if err != nil && err != zk.ErrNoNode {
			return explain("list "+used[i], err)
		}
		if node, writer := b.opts.Dialect.foreignEntry(names); node != "" {
			found[i] = &driver.Finding{
				Level: driver.Warn, Subject: "dialects",
				Text: fmt.Sprintf("under %s stands %s, in %s; this client has dialect=%s, and neither sees the other", used[i], node, writer, b.opts.Dialect),
				Cure: "let all clients of a path use one dialect, or give each its own path",
			}
		}
		return nil
	})
	var fs []driver.Finding
	for _, f := range found {
		if f != nil {
			fs = append(fs, *f)
		}
	}
	return fs, err
}

// diagnoseWaiters checks the longest queue. A list of its entries, of about 60 bytes each, must
// fit into jute.maxbuffer (1 MB unless set), else no new client can be told who is in
// front.
func diagnoseWaiters(longest int32) driver.Finding {
	f := driver.Finding{Level: driver.Info, Subject: "waiters", Text: fmt.Sprintf("the longest queue has %d entries", longest)}
	if longest > manyWaiters {
		f.Level = driver.Warn
		f.Text += "; some 15,000 meet the limit of jute.maxbuffer, 1 MB unless set, and then no client can enter"
		f.Cure = "have fewer waiters per name, or raise jute.maxbuffer on the servers"
	}
	return f
}

// diagnoseServer asks one server. serves is false if it does not answer or has no quorum.
func (b *backend) diagnoseServer(ctx context.Context, server string) (fs []driver.Finding, serves bool) {
	add := func(level driver.Level, subject, text, cure string) {
		fs = append(fs, driver.Finding{Level: level, Subject: server + " " + subject, Text: text, Cure: cure})
	}
	reply, err := b.fourLetterWord(ctx, server, "srvr")
	if err != nil {
		add(driver.Bad, "reach", err.Error(), "see that it runs and that this machine may connect")
		return fs, false
	}
	facts := parseTable(reply, ": ")
	if v := facts["Zookeeper version"]; v != "" {
		version, _, _ := strings.Cut(v, ",")
		add(driver.Info, "version", version+", "+facts["Mode"], "")
		if outdated(version, 3, 5) {
			add(driver.Bad, "version", "it has no container nodes", "3.5.3 or newer is needed")
		}
	}
	switch {
	case notAllowed(reply):
		add(driver.Info, "commands", "srvr is not allowed", "allow srvr in 4lw.commands.whitelist, to have the version and the role told")
		return fs, true
	case facts["Mode"] == "":
		add(driver.Bad, "mode", "it does not serve: "+strings.TrimSpace(reply), "a majority of the ensemble must run and see each other")
		return fs, false
	}
	if n, err := strconv.Atoi(facts["Outstanding"]); err == nil && n > mostOutstanding {
		add(driver.Warn, "load", fmt.Sprintf("%d requests wait to be answered", n), "give it a faster disk for its log, or less to do")
	}
	return fs, true
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
