package redlock

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/hasplock/hasp/driver"
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
	all := []driver.Finding{b.majority(errs)}
	seen := map[string]*node{}
	for i, n := range b.nodes {
		if errs[i] != nil {
			all = append(all, driver.Finding{
				Level: driver.Warn, Subject: "server", Text: fmt.Sprintf("no answer: %v", n.named(errs[i])),
				Cure: "bring it back, or replace it in the URL of every client at the same time",
			})
			continue
		}
		id := each[i].Fields["run_id"]
		if other := seen[id]; other != nil && id != "" {
			each[i].Add(driver.Bad, "server", fmt.Sprintf("it is the same server as %s, and votes twice", other), "name independent servers")
		}
		seen[id] = n
		all = append(all, each[i].Found...)
	}
	return all, nil
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

// majority says how many failures the servers still tolerate.
func (b *store) majority(errs []error) driver.Finding {
	good := 0
	for _, err := range errs {
		if err == nil {
			good++
		}
	}
	f := driver.Finding{Level: driver.Info, Subject: "majority"}
	f.Text = fmt.Sprintf("%s: %d of %d servers answer, %d are needed", b, good, len(b.nodes), b.quorum)
	switch {
	case good < b.quorum:
		f.Level, f.Cure = driver.Bad, "nothing can be locked until a majority is back"
	case good == b.quorum && good < len(b.nodes):
		f.Level, f.Cure = driver.Warn, "no further server may fail: bring the others back"
	}
	return f
}

func (b *store) examine(ctx context.Context, n *node) (x *redisconn.Examination, err error) {
	if err := redisconn.Connect(ctx, n.conn); err != nil {
		return nil, err
	}
	err = n.conn.Each(ctx, func(s redisconn.Node) error {
		x, err = redisconn.Examine(ctx, s)
		if err != nil {
			return err
		}
		x.Version()
		replicas, _ := strconv.Atoi(x.Fields["connected_slaves"])
		switch {
		case x.Fields["role"] == "slave":
			x.Add(driver.Bad, "role", "this is a replica: it refuses writes, or forgets them", "name its master")
		case replicas > 0:
			x.Add(driver.Warn, "replicas", fmt.Sprintf("%d replicas: one that takes over may lack the newest votes", replicas),
				"have no failover for servers of a redlock")
		}
		x.Memory()
		x.Persistence(b.forgets())
		x.Clock()
		n.guard.Examine(ctx, s, x)
		return nil
	})
	if err == nil && x == nil {
		err = errSilent
	}
	return x, err
}
