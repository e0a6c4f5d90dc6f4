package redislock_test

import (
	"math/rand/v2"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/drivertest/programs"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// withPrograms adds the faults that random programs inject into the connections. Their clients
// share names, and have different retentions.
func withPrograms(server *backends.Redis, params string, h drivertest.Harness) drivertest.Harness {
	p := programs.Harness{AtOnce: 128}
	p.Other = func(t testing.TB) driver.Backend { return testkit.Open(t, server.URL()+"?prefix=other:&"+params) }
	p.Proxied = func(t testing.TB) (driver.Backend, programs.Network) {
		retention := []string{"1h", "24h", "240h"}[rand.IntN(3)]
		return testkit.Proxied(t, server.URL()+"?retention="+retention+"&"+params)
	}
	h.Programs = p.Run
	return h
}
