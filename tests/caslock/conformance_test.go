package caslock_test

import (
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp/caslock"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/drivertest/programs"
)

func TestMain(m *testing.M) { drivertest.Main(m) }

// kinds are the stores that the scheme is made for.
var kinds = map[string]func(*contents, *line) caslock.Store{
	"Numbered": func(c *contents, l *line) caslock.Store { return numbered{hashed{c, l}} },
	"Hashed":   func(c *contents, l *line) caslock.Store { return hashed{c, l} },
}

func TestConformance(t *testing.T) {
	for name, connect := range kinds {
		t.Run(name, func(t *testing.T) {
			c := newContents()
			var lines sync.Map
			drivertest.Run(t, drivertest.Harness{
				Open: func(testing.TB) driver.Backend {
					l := &line{}
					b := caslock.New(connect(c, l), nil)
					lines.Store(b, l)
					return b
				},
				Cut: func(_ testing.TB, b driver.Backend) (heal func()) {
					l, _ := lines.Load(b)
					l.(*line).Partition()
					return l.(*line).Heal
				},
				TTL:      time.Minute, // of fake time
				FakeTime: true,
			})
		})
	}
}

// Random programs in fake time, on both kinds of stores.
func TestPrograms(t *testing.T) {
	for name, connect := range kinds {
		t.Run(name, func(t *testing.T) {
			programs.Run(t, programs.Config{
				TTL: 10 * time.Second, FakeTime: true, Programs: 1000,
				Stores: func() []programs.Store {
					stores := make([]programs.Store, 2)
					for i := range stores {
						c := newContents()
						stores[i] = programs.Store{
							Open: func(testing.TB) driver.Backend { return caslock.New(connect(c, nil), nil) },
							Proxied: func(testing.TB) (driver.Backend, programs.Network) {
								l := &line{}
								return caslock.New(connect(c, l), nil), l
							},
						}
					}
					return stores
				},
			})
		})
	}
}
