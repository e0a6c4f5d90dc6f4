package mysqllock_test

import (
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/drivertest/programs"
	"github.com/hasplock/hasp/internal/testkit"
)

// withPrograms adds what random programs do to the way to the server.
func withPrograms(storeURL string, h drivertest.Harness) drivertest.Harness {
	h.Abreast = 64
	h.Other = func(t testing.TB) driver.Backend { return testkit.Open(t, param(storeURL, "prefix=other_")) }
	h.Proxied = func(t testing.TB) (driver.Backend, programs.Network) { return testkit.Proxied(t, h.URL) }
	return h
}
