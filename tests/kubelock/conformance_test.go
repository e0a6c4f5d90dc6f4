package kubelock_test

import (
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/drivertest/programs"
	"github.com/hasplock/hasp/kubelock"
)

func TestConformance(t *testing.T) {
	c := shared(t)
	drivertest.Run(t, drivertest.Harness{
		Open:     func(t testing.TB) driver.Backend { return c.open(t, "suite") },
		URL:      c.url(t, "suite"),
		TTL:      kubelock.MinTTL,
		AtOnce:   200,
		Programs: programs.Harness{Other: func(t testing.TB) driver.Backend { return c.open(t, "other") }}.Run,
	})
}
