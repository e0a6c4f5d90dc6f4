package zklock

import (
	"context"
	"strconv"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp/driver"
)

// The version of what is hasp's own in a queue: the data of nodes, the names of permits, how clients
// go about them. The rest are formats of other libraries. It stands in the data of the root, which
// stays: who makes the root notes it there, or the first session that finds no data; that stays for
// good. Data of another program are left alone, and so is "/": there, clients of two versions are
// not told apart.
//
// Each session looks at it when it begins, and who finds that another has just made the root. A
// session that is open does not look again: for the number to change, an operator must have removed
// the root, and with it the session's entries, without having stopped the clients, as the error
// demands.
const (
	format      = 1
	formatBegin = "hasp format "
)

var formatText = []byte(formatBegin + strconv.Itoa(format))

// checkFormat refuses a root of another format. With note it notes ours where there are no data.
// What this identity may not read or write is not compared.
func (c *conn) checkFormat(ctx context.Context, o *Options, note bool) error {
	if o.Root == "/" || o.Strategy != StrategyQueue {
		return nil
	}
	for current := false; ; {
		n, err := c.get(ctx, o.Root)
		if err == zk.ErrNoNode && note && !current {
			// The server may be behind the one at which a client of another format has just made the
			// root: our entries would stand in it, and nothing would look again.
			if err := c.catchUp(ctx); err != nil {
				return err
			}
			current = true
			continue
		}
		if err == nil && len(n.data) == 0 && note {
			if _, err = call(ctx, c, func() (*zk.Stat, error) { return c.zk.Set(o.Root, formatText, n.stat.Version) }); err == zk.ErrBadVersion {
				continue // another was quicker
			}
		}
		if err == zk.ErrNoNode || err == zk.ErrNoAuth {
			return nil
		}
		if err != nil {
			return explain("read the format", err)
		}
		number, ours := strings.CutPrefix(string(n.data), formatBegin)
		if found, err := strconv.Atoi(number); ours && (err != nil || found != format) {
			return driver.OtherFormat("the node "+o.Root, found, format, "it, with all below it")
		}
		return nil
	}
}
