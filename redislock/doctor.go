package redislock

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock/internal/quarantine"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// Diagnose checks every master for settings that weaken or break the promises of a lock.
func (q *queue) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	return diagnose(ctx, q.conn, q.guard, q.opts, q.foreignClients)
}

// Diagnose is the same for the strategies that share keys with other libraries.
func (a *oneKey) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	return diagnose(ctx, a.conn, a.guard, a.opts, a.foreignClients)
}

// Warnings says whether the servers may evict held locks.
func (q *queue) Warnings(ctx context.Context) ([]driver.Finding, error) {
	return redisconn.Eviction(ctx, q.conn)
}

// Warnings is the same for the strategies that share keys with other libraries.
func (a *oneKey) Warnings(ctx context.Context) ([]driver.Finding, error) {
	return redisconn.Eviction(ctx, a.conn)
}

func diagnose(ctx context.Context, conn redisconn.Conn, guard *quarantine.Guard, o Options,
	foreignClients func(context.Context) ([]driver.Finding, error)) ([]driver.Finding, error) {
	all := []driver.Finding{{
		Level: driver.Info, Subject: "store", Text: fmt.Sprintf("%s, %s, strategy %s", conn, conn.Topology(), o.Strategy),
	}}
	err := conn.Each(ctx, func(n redisconn.Node) error {
		x, err := redisconn.Examine(ctx, n)
		if err != nil {
			return err
		}
		x.Version()
		examineRole(x, o)
		x.Memory()
		x.Persistence(forgets(o))
		x.Clock()
		examineCluster(ctx, n, x)
		guard.Examine(ctx, n, x)
		all = append(all, x.Found...)
		return nil
	})
	if err != nil {
		return all, redisconn.Refusal(err)
	}
	found, err := foreignClients(ctx)
	if all = append(all, found...); err != nil {
		return all, redisconn.Refusal(err)
	}
	if conn.Topology() != redisconn.Single {
		all = append(all, failover(o))
	}
	return all, nil
}

// forgets is the consequence of a server without persistence.
func forgets(o Options) string {
	if o.NoQuarantine {
		return "a server that restarts has forgotten its locks; their holders learn it at the next renewal, and others may hold before"
	}
	return "a server that restarts has forgotten its locks; it then grants none for a TTL, which must be the same for all clients"
}

func failover(o Options) driver.Finding {
	f := driver.Finding{
		Level: driver.Warn, Subject: "failover",
		Text: "replication is asynchronous: a failover can forget the newest grants, and two may hold",
		Cure: "let the resource check fencing tokens; leave out quarantine=off; redlock:// or another store does not depend on it",
	}
	switch {
	case o.NoQuarantine:
	case o.Replicas == 0:
		f.Text = "a master that is cut off and replaced goes on with the clients on its side, and two may hold"
		f.Cure = "wait=N, half of the replicas, ends their locks; or let the resource check fencing tokens"
	case o.Strategy != StrategyQueue:
		f.Text = "a master that is cut off and replaced goes on renewing the locks on its side, and two may hold"
		f.Cure = "strategy=queue ends them; or let the resource check fencing tokens"
	default:
		f.Level, f.Cure = driver.Info, ""
		f.Text = "after a failover the new master grants nothing until its replicas confirm, and for the longest TTL in use; the old one's locks have ended by then"
	}
	return f
}

func examineRole(x *redisconn.Examination, o Options) {
	replicas, _ := strconv.Atoi(x.Fields["connected_slaves"])
	switch {
	case x.Fields["role"] == "slave":
		x.Add(driver.Bad, "role", "this is a replica: it refuses writes, or forgets them", "connect to the master, or name the set with sentinel=NAME")
	case replicas > 0 && o.Replicas == 0:
		x.Add(driver.Warn, "replicas", fmt.Sprintf("%d replicas, and a grant does not wait for any", replicas),
			fmt.Sprintf("wait=%d has a grant confirmed by half of them", (replicas+1)/2))
	case replicas < o.Replicas:
		x.Add(driver.Bad, "replicas", fmt.Sprintf("%d replicas, and wait=%d asks for more: nothing can be acquired", replicas, o.Replicas), "add replicas or lower wait")
	case 2*o.Replicas < replicas:
		x.Add(driver.Warn, "replicas", fmt.Sprintf("%d replicas, of which a grant waits for %d: after a failover the old master may still have so many, "+
			"and the new one too, and two may hold", replicas, o.Replicas), fmt.Sprintf("wait=%d, half of the replicas", (replicas+1)/2))
	default:
		x.Add(driver.Info, "replicas", fmt.Sprintf("%d, of which a grant waits for %d", replicas, o.Replicas), "")
	}
}

func examineCluster(ctx context.Context, n redisconn.Node, x *redisconn.Examination) {
	if x.Fields["cluster_enabled"] != "1" {
		return
	}
	r := n.Do(ctx, "CLUSTER", "INFO")
	text, _ := r.Value.(string)
	if r.Err == nil && strings.Contains(text, "cluster_state:ok") {
		x.Add(driver.Info, "cluster", "state ok", "")
		return
	}
	x.Add(driver.Bad, "cluster", "its state is not ok: some names cannot be locked", "see CLUSTER INFO")
}
