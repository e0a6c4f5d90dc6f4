package redlock

import (
	"context"
	"fmt"
	"sync"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/doctor"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// Diagnose checks every server for settings that weaken or break the promises of a lock. It
// reports servers that do not answer, and fails only when ctx ends.
func (b *store) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	each := make([]*redisconn.Examination, len(b.nodes))
	errs := make([]error, len(b.nodes))
	var wg sync.WaitGroup
	for i, n := range b.nodes {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, readBound)
			defer cancel()
			each[i], errs[i] = b.examine(ctx, n)
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var all doctor.Report
	b.examineMajority(&all, errs)
	seen := map[string]*node{}
	for i, n := range b.nodes {
		if errs[i] != nil {
			all.Add(driver.Warn, "server", fmt.Sprintf("no answer: %v", n.named(errs[i])), "bring it back, or replace it in the URL of every client at the same time")
			continue
		}
		id := each[i].Fields["run_id"]
		if other := seen[id]; other != nil && id != "" {
			each[i].Add(driver.Bad, "server", fmt.Sprintf("it is the same server as %s, and votes twice", other), "name independent servers")
		}
		seen[id] = n
		all.Found = append(all.Found, each[i].Found...)
	}
	return all.Found, nil
}

// Warnings says whether a server may evict held locks. Servers that do not answer are left out.
func (b *store) Warnings(ctx context.Context) (all []driver.Finding, err error) {
	for _, n := range b.nodes {
		if !n.silent(readBound) {
			found, _ := redisconn.Eviction(ctx, n.conn)
			all = append(all, found...)
		}
	}
	return all, ctx.Err()
}

// forgets is the consequence of a server without persistence.
func (b *store) forgets() string {
	if b.opts.NoQuarantine {
		return "a server that restarts has forgotten its votes, and a lock that depended on them can be had twice"
	}
	return "a server that restarts has forgotten its votes, and has none for a TTL, which must be the same for all clients; other libraries do not wait"
}

// examineMajority says how many failures the servers still tolerate.
func (b *store) examineMajority(x *doctor.Report, errs []error) {
	good := 0
	for _, err := range errs {
		if err == nil {
			good++
		}
	}
	text := fmt.Sprintf("%s: %d of %d servers answer, %d are needed", b, good, len(b.nodes), b.quorum)
	x.When(good < b.quorum, driver.Bad, "majority", text, "nothing can be locked until a majority is back")
	x.When(good == b.quorum && good < len(b.nodes), driver.Warn, "majority", text, "no further server may fail: bring the others back")
	x.Else("majority", text)
}

func (b *store) examine(ctx context.Context, n *node) (x *redisconn.Examination, err error) {
	if err := connect(ctx, n.conn); err != nil {
		return nil, err
	}
	err = n.conn.Each(ctx, func(s redisconn.Node) error {
		x, err = redisconn.Examine(ctx, s)
		if err != nil {
			return err
		}
		x.Version()
		replicas := x.Replicas()
		x.When(!x.IsReplica("name its master") && replicas > 0, driver.Warn, "replicas",
			fmt.Sprintf("%d replicas: one that takes over may lack the newest votes", replicas), "have no failover for servers of a redlock")
		x.Memory()
		x.Persistence(b.forgets())
		x.CheckClock()
		n.guard.Examine(ctx, s, x)
		return nil
	})
	if err == nil && x == nil {
		err = errSilent
	}
	return x, err
}
