package caslock_test

import (
	"context"
	"maps"
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
	const retention = 5 * time.Minute
	all := maps.Clone(kinds)
	all["Deleting"] = func(c *contents, l *line) caslock.Store { return deleting{numbered{hashed{c, l}}} }
	for name, connect := range all {
		t.Run(name, func(t *testing.T) {
			// A store for each test: each has a clock for itself, and a client deletes by its clock what
			// was not used for a retention.
			var stores, lines sync.Map
			contentsOf := func(t testing.TB) *contents {
				c, _ := stores.LoadOrStore(t.Name(), newContents())
				return c.(*contents)
			}
			h := drivertest.Harness{
				Open: func(t testing.TB) driver.Backend {
					l := &line{}
					b := caslock.New(connect(contentsOf(t), l), &caslock.Options{Retention: retention})
					lines.Store(b, l)
					return b
				},
				Counted: func(t testing.TB) (driver.Backend, func() int64) {
					l := &line{}
					return caslock.New(connect(contentsOf(t), l), &caslock.Options{Retention: retention}), l.sent.Load
				},
				Gated: func(t testing.TB, gate func(context.Context, string) error) (driver.Backend, func() int64) {
					l := &line{allow: gate}
					return caslock.New(connect(contentsOf(t), l), &caslock.Options{Retention: retention}), l.sent.Load
				},
				Cut: func(_ testing.TB, b driver.Backend) (heal func()) {
					l, _ := lines.Load(b)
					l.(*line).Partition()
					return l.(*line).Heal
				},
				TTL:      time.Minute, // of fake time
				FakeTime: true,
			}
			if name == "Deleting" {
				h.Retention = retention
			}
			drivertest.Run(t, h)
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
