package memlock_test

import (
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest/programs"
	"github.com/hasplock/hasp/hasptest"
)

// Random programs in fake time: what features do to each other.
func TestPrograms(t *testing.T) {
	programs.Run(t, inMemory())
}

// inMemory is two stores that people cannot tell apart by their labels.
func inMemory() programs.Config {
	return programs.Config{
		TTL: 10 * time.Second, FakeTime: true, Programs: 5000,
		Stores: func() []programs.Store {
			stores := make([]programs.Store, 2)
			for i := range stores {
				s := hasptest.New()
				stores[i] = programs.Store{
					Open:   func(testing.TB) driver.Backend { return s.Backend() },
					Forget: s.Forget,
				}
			}
			return stores
		},
	}
}
