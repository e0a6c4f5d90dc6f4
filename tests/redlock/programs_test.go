package redlock_test

import (
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/drivertest/programs"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// five are servers that programs may disturb, if there will be any.
func five(t *testing.T) []*backends.Redis {
	if programs.Asked() {
		return backends.StartRedisNodes(t, 5, backends.RedisOptions{})
	}
	return backends.SharedRedisNodes(t)
}

// withPrograms adds the faults that random programs inject into the servers and the connections.
func withPrograms(nodes []*backends.Redis, h drivertest.Harness) drivertest.Harness {
	p := programs.Harness{AtOnce: 96}
	p.Other = func(t testing.TB) driver.Backend { return testkit.Open(t, urlOf(nodes)+"?prefix=other:") }
	p.Proxied = func(t testing.TB) (driver.Backend, programs.Network) { return testkit.Proxied(t, h.URL) }
	p.Disturb = func(t testing.TB) (undo func()) { return backends.PauseOne(t, nodes...) }
	h.Programs = p.Run
	return h
}
