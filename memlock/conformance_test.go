package memlock_test

import (
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/memlock"
)

func TestConformance(t *testing.T) {
	store := memlock.New()
	drivertest.Run(t, drivertest.Harness{
		Open:     func(testing.TB) driver.Backend { return store.Backend() },
		TTL:      time.Minute, // of fake time
		FakeTime: true,
	})
}

// All who wait are told their places.
func TestPlaces(t *testing.T) {
	testkit.Places(t, memlock.New().Backend(), 1, 2, 3, 4, 5, 6)
}
