package redislock

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/redisconn"
)

// Diagnose looks at every master for what would weaken or break the promises of a lock.
func (q *queue) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	return diagnose(ctx, q.conn, q.opts)
}

// Diagnose is the same for the strategies that share keys with other libraries.
func (a *attempts) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	return diagnose(ctx, a.conn, a.opts)
}

func diagnose(ctx context.Context, conn redisconn.Conn, o Options) ([]driver.Finding, error) {
	all := []driver.Finding{{
		Level: driver.Info, Subject: "store", Text: fmt.Sprintf("%s, %s, strategy %s", conn, conn.Topology(), o.Strategy),
	}}
	err := conn.Each(ctx, func(n redisconn.Node) error {
		x := &examination{node: n, ctx: ctx, options: o}
		if err := x.info(); err != nil {
			return fmt.Errorf("%s: %w", n.Addr(), err)
		}
		x.version()
		x.role()
		x.memory()
		x.persistence()
		x.clock()
		x.cluster()
		all = append(all, x.found...)
		return nil
	})
	if err != nil {
		return all, refusal(err)
	}
	if conn.Topology() != redisconn.Single {
		all = append(all, driver.Finding{
			Level: driver.Warn, Subject: "failover",
			Text: "replication is asynchronous: a failover can forget the newest grants, and two may hold",
			Cure: "let the resource check fencing tokens; wait=1 makes it rarer; redlock:// or another store does not depend on it",
		})
	}
	return all, nil
}

// examination is of one server.
type examination struct {
	node    redisconn.Node
	ctx     context.Context
	options Options
	fields  map[string]string // of INFO
	found   []driver.Finding
}

func (x *examination) add(level driver.Level, subject, text, cure string) {
	x.found = append(x.found, driver.Finding{Level: level, Subject: subject, Text: x.node.Addr() + ": " + text, Cure: cure})
}

func (x *examination) info() error {
	r := x.node.Do(x.ctx, "INFO")
	if r.Err != nil {
		return r.Err
	}
	text, _ := r.Value.(string)
	x.fields = map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			x.fields[key] = value
		}
	}
	return nil
}

// config reads one setting. Hosted servers often refuse CONFIG; ok is false then.
func (x *examination) config(name string) (value string, ok bool) {
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

func (x *examination) version() {
	name, v := "Redis", x.fields["redis_version"]
	if valkey := x.fields["valkey_version"]; valkey != "" {
		name, v = "Valkey", valkey
	}
	x.add(driver.Info, "version", name+" "+v, "")
	var major, minor int
	_, _ = fmt.Sscanf(x.fields["redis_version"], "%d.%d", &major, &minor) // Valkey says 7.2 here
	if major < 6 || major == 6 && minor < 2 {
		x.add(driver.Bad, "version", "older than 6.2, which hasp is not made for", "upgrade the server")
	}
}

func (x *examination) role() {
	replicas, _ := strconv.Atoi(x.fields["connected_slaves"])
	switch {
	case x.fields["role"] == "slave":
		x.add(driver.Bad, "role", "this is a replica: it refuses writes, or forgets them", "connect to the master, or name the set with sentinel=NAME")
	case replicas > 0 && x.options.Replicas == 0:
		x.add(driver.Warn, "replicas", fmt.Sprintf("%d replicas, and a grant does not wait for any", replicas), "wait=1 has a grant confirmed by one of them")
	case replicas < x.options.Replicas:
		x.add(driver.Bad, "replicas", fmt.Sprintf("%d replicas, and wait=%d asks for more: nothing can be acquired", replicas, x.options.Replicas), "add replicas or lower wait")
	default:
		x.add(driver.Info, "replicas", fmt.Sprintf("%d, of which a grant waits for %d", replicas, x.options.Replicas), "")
	}
}

func (x *examination) memory() {
	policy := x.fields["maxmemory_policy"]
	limit := x.fields["maxmemory"]
	switch {
	case policy == "":
		x.add(driver.Warn, "eviction", "the server does not tell its eviction policy", "make sure that it is noeviction")
	case policy != "noeviction" && limit == "0":
		x.add(driver.Warn, "eviction", policy+", without effect while maxmemory is 0", "set maxmemory-policy noeviction")
	case policy != "noeviction":
		x.add(driver.Bad, "eviction", policy+": the server may throw a held lock away to save memory", "set maxmemory-policy noeviction, or give locks a server of their own")
	default:
		x.add(driver.Info, "eviction", "noeviction", "")
	}
}

func (x *examination) persistence() {
	const forgets = "a server that restarts has forgotten its locks; their holders learn it at the next renewal, and others may hold before"
	fsync, known := x.config("appendfsync")
	switch {
	case x.fields["aof_enabled"] != "1":
		x.add(driver.Warn, "persistence", "no append-only file: "+forgets, "set appendonly yes and appendfsync always, or have restarts wait a TTL")
	case known && fsync != "always":
		x.add(driver.Warn, "persistence", "appendfsync "+fsync+": after a power loss the last grants are forgotten", "set appendfsync always where that matters")
	case !known:
		x.add(driver.Info, "persistence", "append-only file; appendfsync is not told", "")
	default:
		x.add(driver.Info, "persistence", "append-only file, appendfsync always", "")
	}
}

// clockTolerance is how far the server's clock may be off before somebody should look.
// Exclusion does not depend on it, only on its rate; tokens after a loss of data do.
const clockTolerance = 5 * time.Second

func (x *examination) clock() {
	before := time.Now()
	r := x.node.Do(x.ctx, "TIME")
	middle := before.Add(time.Since(before) / 2)
	parts, _ := r.Value.([]any)
	if r.Err != nil || len(parts) != 2 {
		x.add(driver.Warn, "clock", "the server does not tell its time", "")
		return
	}
	s, _ := parts[0].(string)
	us, _ := parts[1].(string)
	sec, _ := strconv.ParseInt(s, 10, 64)
	micro, _ := strconv.ParseInt(us, 10, 64)
	off := time.Unix(sec, micro*1000).Sub(middle).Round(time.Millisecond)
	if off.Abs() > clockTolerance {
		x.add(driver.Warn, "clock", fmt.Sprintf("the server's clock differs from ours by %s", off), "run NTP on both; never step the clock of a server that holds locks")
		return
	}
	x.add(driver.Info, "clock", fmt.Sprintf("differs from ours by %s", off), "")
}

func (x *examination) cluster() {
	if x.fields["cluster_enabled"] != "1" {
		return
	}
	r := x.node.Do(x.ctx, "CLUSTER", "INFO")
	text, _ := r.Value.(string)
	if r.Err == nil && strings.Contains(text, "cluster_state:ok") {
		x.add(driver.Info, "cluster", "state ok", "")
		return
	}
	x.add(driver.Bad, "cluster", "its state is not ok: some names cannot be locked", "see CLUSTER INFO")
}
