package etcdlock_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/drivertest/programs"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// three are servers that programs may disturb, if there will be any.
func three(t *testing.T) *backends.EtcdCluster {
	if programs.Asked() {
		return backends.StartEtcdCluster(t, backends.EtcdOptions{})
	}
	return backends.SharedEtcdCluster(t)
}

// withPrograms adds what random programs do to the members, and to the ways to them.
func withPrograms(members []*backends.Etcd, h drivertest.Harness) drivertest.Harness {
	p := programs.Harness{AtOnce: 128}
	p.Other = func(t testing.TB) driver.Backend { return testkit.Open(t, storeURL(members)+"?prefix=other/") }
	p.Proxied = func(t testing.TB) (driver.Backend, programs.Network) { return testkit.Proxied(t, h.URL) }
	if len(members) > 2 {
		p.Disturb = func(t testing.TB) (undo func()) { return backends.PauseOne(t, followers(t, members)...) }
	}
	h.Programs = p.Run
	return h
}

// followers are the members that do not lead, as far as anybody can tell; without an answer, any
// two. etcd does not survive that its leader is stopped for longer than the others wait and is then
// continued, not in 3.7.3: it may revoke leases that its successor has renewed, and locks are lost
// with them (docs/backends/etcd.md).
func followers(t testing.TB, members []*backends.Etcd) []*backends.Etcd {
	c := client(t, members[0].Addr)
	defer c.Close()
	for i, m := range members {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		s, err := c.Status(ctx, m.URL())
		cancel()
		if err == nil && s.Leader == s.Header.MemberId {
			return slices.Delete(slices.Clone(members), i, i+1)
		}
	}
	return members[1:]
}
