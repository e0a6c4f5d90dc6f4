package redisconn

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/doctor"
)

// Examination has the findings about one server, for a driver's Diagnose.
type Examination struct {
	doctor.Report
	node   Node
	ctx    context.Context
	info   string            // the answer to INFO
	Fields map[string]string // of it
}

// Examine reads the server's INFO.
func Examine(ctx context.Context, n Node) (*Examination, error) {
	r := n.Do(ctx, "INFO")
	if r.Err != nil {
		return nil, fmt.Errorf("%s: %w", n.Addr(), r.Err)
	}
	x := &Examination{Report: doctor.Report{Server: n.Addr()}, node: n, ctx: ctx, Fields: map[string]string{}}
	x.info, _ = r.Value.(string)
	for line := range strings.Lines(x.info) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			x.Fields[key] = value
		}
	}
	return x, nil
}

// config reads one setting. ok is false if the server refuses CONFIG, as hosted servers often do.
func (x *Examination) config(name string) (value string, ok bool) {
	r := x.node.Do(x.ctx, "CONFIG", "GET", name)
	switch v := r.Value.(type) {
	case []any: // RESP2
		if len(v) == 2 {
			value, ok = v[1].(string)
		}
	case map[string]any:
		value, ok = v[name].(string)
	case map[any]any:
		value, ok = v[name].(string)
	}
	return value, ok
}

// Version returns the server's kind and version.
func (x *Examination) Version() {
	name, v := "Redis", x.Fields["redis_version"]
	if valkey := x.Fields["valkey_version"]; valkey != "" {
		name, v = "Valkey", valkey
	}
	var major, minor int
	_, _ = fmt.Sscanf(x.Fields["redis_version"], "%d.%d", &major, &minor) // Valkey says 7.2 here
	x.When(major < 6 || major == 6 && minor < 2, driver.Bad, "version", name+" "+v+", older than 6.2, which hasp is not made for", "upgrade the server")
	x.Else("version", name+" "+v)
	x.Product(products, x.info)
}

// products are recognised by a line of INFO.
var products = []doctor.Product{
	doctor.Refused("KeyDB with active-replica", "role:active-replica", "each of its servers takes writes, and where they were apart the newest write of a key wins"),
	doctor.Refused("Garnet without a cluster", "master_replid:0000000000000000000000000000000000000000", "its replication id is always 0, so that a start with an old file cannot be noticed"),
	doctor.Untested("Garnet", "garnet_version:", "scripts are off unless it was started with --lua"),
	doctor.Untested("KeyDB", "mvcc_depth:", "a fork of Redis with threads, whose scripts are atomic as there"),
	doctor.Untested("Dragonfly", "dragonfly_version:", "its scripts are of Lua 5.4, and it has no append-only file"),
	doctor.Untested("Upstash", "upstash_version:", "not Redis's program; its replicas are asynchronous, and after a split the last write of a key wins: let the resource check fencing tokens"),
	doctor.Untested("Amazon ElastiCache", "os:Amazon ElastiCache", "a failover may lose writes unless its durability is synchronous"),
	doctor.Untested("Amazon MemoryDB", "os:Amazon MemoryDB", "a write is in a log of several zones before it is answered"),
}

// Meet refuses a server on which no lock could hold, when a store is opened. A server that tells
// nothing of itself is accepted. replica says what to do about one. runID is "" if it is not told.
func Meet(ctx context.Context, n Node, replica string) (runID string, err error) {
	x, err := Examine(ctx, n)
	if Answered(err) != "" { // this user may not run INFO
		x = &Examination{Fields: map[string]string{}}
		if role, _ := n.Do(ctx, "ROLE").Value.([]any); len(role) > 0 {
			x.Fields["role"], _ = role[0].(string)
		}
	} else if err != nil {
		return "", err
	}
	if x.Fields["role"] == "slave" {
		return "", fmt.Errorf("%w: %s is a replica%s", driver.ErrInvalid, n.Addr(), replica)
	}
	if err := doctor.Refuse(products, x.info); err != nil {
		return "", fmt.Errorf("%s: %w", n.Addr(), err)
	}
	return x.Fields["run_id"], ctx.Err()
}

// IsReplica reports whether it is one, and then says so.
func (x *Examination) IsReplica(cure string) bool {
	is := x.Fields["role"] == "slave"
	x.When(is, driver.Bad, "role", "this is a replica: it refuses writes, or forgets them", cure)
	return is
}

// Replicas is how many the server has.
func (x *Examination) Replicas() (n int) {
	n, _ = strconv.Atoi(x.Fields["connected_slaves"])
	return n
}

// Memory checks that the server does not evict locks to save memory.
func (x *Examination) Memory() {
	policy, fine := x.Fields["maxmemory_policy"], "set maxmemory-policy noeviction"
	evicts := policy != "noeviction"
	x.When(policy == "", driver.Warn, "eviction", "the server does not tell its eviction policy", "make sure that it is noeviction")
	x.When(evicts && x.Fields["maxmemory"] == "0", driver.Warn, "eviction", policy+", without effect while maxmemory is 0", fine)
	x.When(evicts, driver.Bad, "eviction", policy+": the server may throw a held lock away to save memory", fine+", or give locks a separate server")
	x.Else("eviction", policy)
}

// Eviction checks the masters for it alone.
func Eviction(ctx context.Context, conn Conn) (found []driver.Finding, err error) {
	err = conn.Each(ctx, func(n Node) error {
		x, err := Examine(ctx, n)
		if err == nil {
			x.Memory()
			found = append(found, x.Found...)
		}
		return err
	})
	return found, err
}

// Persistence checks that the server does not forget its locks when it restarts. forgets is the
// consequence.
func (x *Examination) Persistence(forgets string) {
	const subject = "persistence"
	fsync, known := x.config("appendfsync")
	x.When(x.Fields["aof_enabled"] != "1", driver.Warn, subject, "no append-only file: "+forgets, "set appendonly yes and appendfsync always")
	x.When(!known, driver.Info, subject, "append-only file; appendfsync is not told", "")
	x.When(fsync != "always", driver.Warn, subject, "appendfsync "+fsync+": after a power loss the last grants are forgotten", "set appendfsync always where that matters")
	x.Else(subject, "append-only file, appendfsync always")
}

// CheckClock compares the server's clock with ours.
func (x *Examination) CheckClock() {
	asked := time.Now()
	var sec, micro int64
	parts, _ := x.node.Do(x.ctx, "TIME").Value.([]any)
	if _, err := fmt.Sscan(fmt.Sprintln(parts...), &sec, &micro); err != nil {
		x.Add(driver.Warn, "clock", "the server does not tell its time", "")
		return
	}
	x.Clock(time.Unix(sec, micro*1000), asked)
}
