package redlock_test

import (
	"strings"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/drivertest/programs"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
)

// five are servers that programs may disturb, if there will be any.
func five(t *testing.T) []*backends.Redis {
	if programs.Asked() {
		return backends.StartRedisNodes(t, 5, backends.RedisOptions{})
	}
	return backends.SharedRedisNodes(t)
}

// withPrograms adds what random programs do to the servers, and to the ways to them.
func withPrograms(nodes []*backends.Redis, h drivertest.Harness) drivertest.Harness {
	h.Abreast = 96
	h.Other = func(t testing.TB) driver.Backend { return testkit.Open(t, urlOf(nodes)+"?prefix=other:") }
	h.Proxied = func(t testing.TB) (driver.Backend, programs.Network) {
		var addrs []string
		for _, r := range nodes {
			addrs = append(addrs, r.Addr)
		}
		n, err := faultnet.NewNetwork(addrs...)
		if err != nil {
			t.Fatal(err)
		}
		return testkit.Open(t, "redlock://"+strings.Join(n.Addrs(), ",")), n
	}
	h.Disturb = func(t testing.TB) (undo func()) { return backends.PauseOne(t, nodes...) }
	return h
}
