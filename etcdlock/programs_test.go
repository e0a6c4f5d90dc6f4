package etcdlock_test

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

// three are servers that programs may disturb, if there will be any.
func three(t *testing.T) *backends.EtcdCluster {
	if programs.Asked() {
		return backends.StartEtcdCluster(t, backends.EtcdOptions{})
	}
	return backends.SharedEtcdCluster(t)
}

// withPrograms adds what random programs do to the members, and to the ways to them.
func withPrograms(members []*backends.Etcd, h drivertest.Harness) drivertest.Harness {
	h.Abreast = 128
	h.Other = func(t testing.TB) driver.Backend { return testkit.Open(t, storeURL(members)+"?prefix=other/") }
	h.Proxied = func(t testing.TB) (driver.Backend, programs.Network) {
		var addrs []string
		for _, m := range members {
			addrs = append(addrs, m.Addr)
		}
		n := testkit.Must[faultnet.Network](t)(faultnet.NewNetwork(addrs...))
		return testkit.Open(t, "etcd://"+strings.Join(n.Addrs(), ",")), n
	}
	if len(members) > 2 {
		h.Disturb = func(t testing.TB) (undo func()) { return backends.PauseOne(t, members...) }
	}
	return h
}
