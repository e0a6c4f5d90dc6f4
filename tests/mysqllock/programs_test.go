package mysqllock_test

import (
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/drivertest/programs"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// withPrograms adds what random programs do to the way to the server.
func withPrograms(storeURL string, h drivertest.Harness) drivertest.Harness {
	p := programs.Harness{AtOnce: 64}
	p.Other = func(t testing.TB) driver.Backend { return testkit.Open(t, sqlkit.With(storeURL, "prefix=other_")) }
	p.Proxied = func(t testing.TB) (driver.Backend, programs.Network) { return testkit.Proxied(t, h.URL) }
	h.Programs = p.Run
	return h
}
