package kubelock_test

import (
	"os"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/drivertest/programs"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/kubelock"
)

func TestConformance(t *testing.T) {
	testtier.Long(t)
	if os.Getenv("HASP_KUBE") != "1" {
		t.Skip("builds a Kubernetes API server first: make test-kube runs it")
	}
	c := shared(t)
	drivertest.Run(t, drivertest.Harness{
		Open:     func(t testing.TB) driver.Backend { return c.open(t, "suite") },
		URL:      c.url(t, "suite"),
		TTL:      kubelock.MinTTL,
		AtOnce:   200,
		Programs: programs.Harness{Other: func(t testing.TB) driver.Backend { return c.open(t, "other") }}.Run,
	})
}
