package redisconn

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Examination has the findings about one server, for a driver's Diagnose.
type Examination struct {
	node   Node
	ctx    context.Context
	Fields map[string]string // of INFO
	Found  []driver.Finding
}

// Add adds a finding.
func (x *Examination) Add(level driver.Level, subject, text, cure string) {
	x.Found = append(x.Found, driver.Finding{Level: level, Subject: subject, Text: x.node.Addr() + ": " + text, Cure: cure})
}

// Examine reads the server's INFO.
func Examine(ctx context.Context, n Node) (*Examination, error) {
	r := n.Do(ctx, "INFO")
	if r.Err != nil {
		return nil, fmt.Errorf("%s: %w", n.Addr(), r.Err)
	}
	x := &Examination{node: n, ctx: ctx, Fields: map[string]string{}}
	text, _ := r.Value.(string)
	for line := range strings.Lines(text) {
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
	x.Add(driver.Info, "version", name+" "+v, "")
	var major, minor int
	_, _ = fmt.Sscanf(x.Fields["redis_version"], "%d.%d", &major, &minor) // Valkey says 7.2 here
	if major < 6 || major == 6 && minor < 2 {
		x.Add(driver.Bad, "version", "older than 6.2, which hasp is not made for", "upgrade the server")
	}
}

// Memory checks that the server does not evict locks to save memory.
func (x *Examination) Memory() {
	policy := x.Fields["maxmemory_policy"]
	limit := x.Fields["maxmemory"]
	switch {
	case policy == "":
		x.Add(driver.Warn, "eviction", "the server does not tell its eviction policy", "make sure that it is noeviction")
	case policy != "noeviction" && limit == "0":
		x.Add(driver.Warn, "eviction", policy+", without effect while maxmemory is 0", "set maxmemory-policy noeviction")
	case policy != "noeviction":
		x.Add(driver.Bad, "eviction", policy+": the server may throw a held lock away to save memory", "set maxmemory-policy noeviction, or give locks a separate server")
	default:
		x.Add(driver.Info, "eviction", "noeviction", "")
	}
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
	fsync, known := x.config("appendfsync")
	switch {
	case x.Fields["aof_enabled"] != "1":
		x.Add(driver.Warn, "persistence", "no append-only file: "+forgets, "set appendonly yes and appendfsync always")
	case known && fsync != "always":
		x.Add(driver.Warn, "persistence", "appendfsync "+fsync+": after a power loss the last grants are forgotten", "set appendfsync always where that matters")
	case !known:
		x.Add(driver.Info, "persistence", "append-only file; appendfsync is not told", "")
	default:
		x.Add(driver.Info, "persistence", "append-only file, appendfsync always", "")
	}
}

// clockTolerance is how far the server's clock may be off without a warning.
// Exclusion does not depend on it, only on its rate; tokens after a loss of data do.
const clockTolerance = 5 * time.Second

// Clock compares the server's clock with ours.
func (x *Examination) Clock() {
	before := time.Now()
	r := x.node.Do(x.ctx, "TIME")
	middle := before.Add(time.Since(before) / 2)
	parts, _ := r.Value.([]any)
	if r.Err != nil || len(parts) != 2 {
		x.Add(driver.Warn, "clock", "the server does not tell its time", "")
		return
	}
	s, _ := parts[0].(string)
	us, _ := parts[1].(string)
	sec, _ := strconv.ParseInt(s, 10, 64)
	micro, _ := strconv.ParseInt(us, 10, 64)
	off := time.Unix(sec, micro*1000).Sub(middle).Round(time.Millisecond)
	if off.Abs() > clockTolerance {
		x.Add(driver.Warn, "clock", fmt.Sprintf("the server's clock differs from ours by %s", off), "run NTP on both; never step the clock of a server that holds locks")
		return
	}
	x.Add(driver.Info, "clock", fmt.Sprintf("differs from ours by %s", off), "")
}
