package redislock

import (
	"context"
	"fmt"
	"strings"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/doctor"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// Diagnose checks every master for settings that weaken or break the promises of a lock.
func (q *queue) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	return q.diagnose(ctx, q.foreignClients)
}

// Diagnose is the same for the strategies that share keys with other libraries.
func (a *oneKey) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	return a.diagnose(ctx, a.foreignClients)
}

// Warnings says whether the servers may evict held locks.
func (s *store) Warnings(ctx context.Context) ([]driver.Finding, error) {
	return redisconn.Eviction(ctx, s.conn)
}

func (s *store) diagnose(ctx context.Context, foreignClients func(context.Context) ([]driver.Finding, error)) ([]driver.Finding, error) {
	var all doctor.Report
	all.Else("store", fmt.Sprintf("%s, %s, strategy %s", s.conn, s.conn.Topology(), s.opts.Strategy))
	err := s.conn.Each(ctx, func(n redisconn.Node) error {
		x, err := redisconn.Examine(ctx, n)
		if err != nil {
			return err
		}
		x.Version()
		examineRole(x, s.opts)
		x.Memory()
		x.Persistence(forgets(s.opts))
		x.CheckClock()
		examineCluster(ctx, n, x)
		s.guard.Examine(ctx, n, x)
		all.Found = append(all.Found, x.Found...)
		return nil
	})
	if err != nil {
		return all.Found, redisconn.Refusal(err)
	}
	found, err := foreignClients(ctx)
	if all.Found = append(all.Found, found...); err != nil {
		return all.Found, redisconn.Refusal(err)
	}
	if s.conn.Topology() != redisconn.Single {
		examineFailover(&all, s.opts)
	}
	return all.Found, nil
}

// forgets is the consequence of a server without persistence.
func forgets(o Options) string {
	if o.NoQuarantine {
		return "a server that restarts has forgotten its locks; their holders learn it at the next renewal, and others may hold before"
	}
	return "a server that restarts has forgotten its locks; it then grants none for a TTL, which must be the same for all clients"
}

func examineFailover(x *doctor.Report, o Options) {
	const subject, tokens = "failover", "let the resource check fencing tokens"
	x.When(o.NoQuarantine, driver.Warn, subject, "replication is asynchronous: a failover can forget the newest grants, and two may hold",
		tokens+"; leave out quarantine=off; redlock:// or another store does not depend on it")
	x.When(o.Replicas == 0, driver.Warn, subject, "a master that is cut off and replaced goes on with the clients on its side, and two may hold",
		"wait=N, half of the replicas, ends their locks; or "+tokens)
	x.When(o.Strategy != StrategyQueue, driver.Warn, subject, "a master that is cut off and replaced goes on renewing the locks on its side, and two may hold",
		"strategy=queue ends them; or "+tokens)
	x.Else(subject, "after a failover the new master grants nothing until its replicas confirm, and for the longest TTL in use; the old one's locks have ended by then")
}

func examineRole(x *redisconn.Examination, o Options) {
	const subject = "replicas"
	if x.IsReplica("connect to the master, or name the set with sentinel=NAME") {
		return
	}
	there, half := x.Replicas(), (x.Replicas()+1)/2
	x.When(there > 0 && o.Replicas == 0, driver.Warn, subject, fmt.Sprintf("%d replicas, and a grant does not wait for any", there),
		fmt.Sprintf("wait=%d has a grant confirmed by half of them", half))
	x.When(there < o.Replicas, driver.Bad, subject, fmt.Sprintf("%d replicas, and wait=%d asks for more: nothing can be acquired", there, o.Replicas), "add replicas or lower wait")
	x.When(2*o.Replicas < there, driver.Warn, subject, fmt.Sprintf("%d replicas, of which a grant waits for %d: after a failover the old master may still have so many, "+
		"and the new one too, and two may hold", there, o.Replicas), fmt.Sprintf("wait=%d, half of the replicas; count those that are spare or lost, too", half))
	x.Else(subject, fmt.Sprintf("%d, of which a grant waits for %d", there, o.Replicas))
}

func examineCluster(ctx context.Context, n redisconn.Node, x *redisconn.Examination) {
	if x.Fields["cluster_enabled"] == "1" {
		text, _ := n.Do(ctx, "CLUSTER", "INFO").Value.(string)
		x.When(!strings.Contains(text, "cluster_state:ok"), driver.Bad, "cluster", "its state is not ok: some names cannot be locked", "see CLUSTER INFO")
		x.Else("cluster", "state ok")
	}
}
