// Package quarantine keeps a server from granting while it may have forgotten grants: after it was
// started again, emptied or promoted, until each lease that it may have forgotten is over. mark.lua
// finds that out and decides, in the script that would grant; it is the beginning of all of these.
// The package has what the strategies and redlock share: where the mark is, and what people are told.
package quarantine

import (
	"context"
	_ "embed" // the scripts
	"fmt"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

var (
	//go:embed mark.lua
	markLua string
	//go:embed left.lua
	leftLua string

	leftScript = redisconn.NewGrantScript(Mark, func() string { return leftLua })
)

// Mark is the beginning of a script that grants (see redisconn.NewGrantScript).
func Mark() string { return markLua }

// Key is the key of the mark for a lock's key: one for each server and prefix. In a cluster a script
// may use the keys of one slot only, and a slot can move to another server: there is one for each slot.
func Key(conn redisconn.Conn, prefix, key string) string {
	if conn.Topology() == redisconn.Cluster {
		return prefix + "mark:{" + slotTag(slotOf(key)) + "}"
	}
	return prefix + "mark"
}

// Left asks for how long a server grants nothing from now.
func Left(ctx context.Context, conn redisconn.Conn, mark string) (time.Duration, error) {
	r := conn.Eval(ctx, leftScript, redisconn.Call{Keys: []string{mark}}, 0)
	us, _ := r.Value.(int64)
	return time.Duration(us) * time.Microsecond, r.Err
}

// Refusal is the error of a request that cannot wait for the end of the quarantine; left is the
// script's answer in microseconds.
func Refusal(left any) error {
	us, _ := left.(int64)
	return fmt.Errorf("%w: the server may have forgotten locks, and grants none for another %s",
		driver.ErrRefused, (time.Duration(us) * time.Microsecond).Round(time.Millisecond))
}

// Examine tells people what the mark says.
func Examine(ctx context.Context, n redisconn.Node, x *redisconn.Examination, conn redisconn.Conn, prefix string, off bool) {
	const subject = "quarantine"
	switch {
	case off:
		x.Add(driver.Bad, subject, "off: a server that has forgotten its locks grants them again at once", "leave out quarantine=off")
		return
	case x.Fields["run_id"] == "":
		x.Add(driver.Bad, subject, "this user may not run INFO: a restart of the server is not noticed", "allow INFO to the user")
		return
	case conn.Topology() == redisconn.Cluster:
		x.Add(driver.Info, subject, "on, separately for each slot", "")
		return
	}
	text, _ := n.Do(ctx, "GET", prefix+"mark").Value.(string)
	var run string
	var longest, until, seconds, micro int64
	if _, err := fmt.Sscan(text, &run, &until, &longest); err != nil {
		x.Add(driver.Info, subject, "on; no lock was ever taken here", "")
		return
	}
	if now, _ := n.Do(ctx, "TIME").Value.([]any); len(now) == 2 {
		_, _ = fmt.Sscan(fmt.Sprint(now[0], " ", now[1]), &seconds, &micro)
	}
	left := time.Duration(until-seconds*1e6-micro) * time.Microsecond
	lease := time.Duration(longest) * time.Microsecond
	switch {
	case run != x.Fields["run_id"]:
		x.Add(driver.Warn, subject, fmt.Sprintf("the server was started again, or promoted, since the last lock: from the next request on it grants none for %s", lease), "")
	case left > 0:
		x.Add(driver.Warn, subject, fmt.Sprintf("the server may have forgotten locks, and grants none for another %s", left.Round(time.Second)), "wait, or write its run id to hasp:new and delete "+prefix+"mark if you know better")
	default:
		x.Add(driver.Info, subject, fmt.Sprintf("on; after a restart the server grants nothing for %s, the longest TTL in use", lease), "")
	}
}
