package quarantine

import (
	"context"
	"fmt"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// Examine tells people what the mark of a server says.
func (g *Guard) Examine(ctx context.Context, n redisconn.Node, x *redisconn.Examination) {
	const subject = "quarantine"
	switch {
	case g.off:
		x.Add(driver.Bad, subject, "off: a server that has forgotten its locks grants them again at once", "leave out quarantine=off")
		return
	case x.Fields["master_replid"] == "":
		x.Add(driver.Bad, subject, "this user may not run INFO: a restart of the server is not noticed", "allow INFO to the user")
		return
	case g.conn.Topology() == redisconn.Cluster:
		x.Add(driver.Info, subject, "on, separately for each slot", "")
		return
	}
	text, _ := n.Do(ctx, "GET", g.mark("")).Value.(string)
	var reign string
	var till, before, longest, seconds, micro int64
	if _, err := fmt.Sscan(text, &till, &longest, &reign, &before); err != nil {
		x.Add(driver.Info, subject, "on; no lock was ever taken here", "")
		return
	}
	if now, _ := n.Do(ctx, "TIME").Value.([]any); len(now) == 2 {
		_, _ = fmt.Sscan(fmt.Sprint(now[0], " ", now[1]), &seconds, &micro)
	}
	left := time.Duration(till-seconds*1e6-micro) * time.Microsecond
	lease := time.Duration(max(longest, before)) * time.Microsecond
	cure := "wait, or write its run id to hasp:new and delete " + g.mark("") + " if you know better"
	switch {
	case reign != x.Fields["master_replid"]:
		x.Add(driver.Warn, subject, fmt.Sprintf("the server was started again, or promoted, since the last lock: it grants none "+
			"until it is up for %s, or for so long from the next request on", lease), "")
	case till == 0:
		x.Add(driver.Warn, subject, fmt.Sprintf("the server may have forgotten locks, and grants none until its replicas confirm, and for another %s", lease), cure)
	case left > 0:
		x.Add(driver.Warn, subject, fmt.Sprintf("the server may have forgotten locks, and grants none for another %s", left.Round(time.Second)), cure)
	default:
		x.Add(driver.Info, subject, fmt.Sprintf("on; after a restart the server grants nothing for %s, the longest TTL in use", lease), "")
	}
}
