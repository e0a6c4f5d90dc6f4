package zklock_test

import (
	"slices"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/drivertest/programs"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// ensemble are servers that programs may disturb, if there will be any.
func ensemble(t *testing.T) *backends.ZooKeeperEnsemble {
	if programs.Asked() {
		return backends.StartZooKeeperEnsemble(t, backends.ZooKeeperOptions{})
	}
	return backends.SharedZooKeeperEnsemble(t)
}

// withPrograms adds what random programs do to the servers, and to the ways to them.
func withPrograms(params string, servers []*backends.ZooKeeper, h drivertest.Harness) drivertest.Harness {
	p := programs.Harness{AtOnce: 96}
	// The suite opens backends behind separate proxies, which programs do not need.
	p.Other = func(t testing.TB) driver.Backend { return testkit.Open(t, urlOf(servers...)+"/other"+params) }
	p.Proxied = func(t testing.TB) (driver.Backend, programs.Network) { return testkit.Proxied(t, h.URL) }
	if len(servers) > 2 {
		// A follower: without their leader all are silent until there is another, for longer than
		// most sessions last.
		p.Disturb = func(t testing.TB) (undo func()) {
			e := backends.ZooKeeperEnsemble{Members: servers}
			leader, err := e.Leader()
			if err != nil {
				return func() {} // there will be one
			}
			return backends.PauseOne(t, slices.DeleteFunc(slices.Clone(servers), func(z *backends.ZooKeeper) bool { return z == leader })...)
		}
	}
	h.Programs = p.Run
	return h
}
