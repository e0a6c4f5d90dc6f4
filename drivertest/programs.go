package drivertest

import (
	"testing"

	"github.com/hasplock/hasp/drivertest/programs"
)

// Programs is the harness's view of a store, for [programs.Run] and [programs.Replay].
func (h Harness) Programs(t testing.TB) programs.Config {
	h = h.withDefaults(t)
	return programs.Config{
		TTL: h.TTL, FakeTime: h.FakeTime, Disturb: h.Disturb, AtOnce: h.Abreast,
		Stores: func() []programs.Store {
			stores := []programs.Store{{Open: h.Open, Proxied: h.Proxied}}
			if h.Other != nil {
				stores = append(stores, programs.Store{Open: h.Other})
			}
			return stores
		},
	}
}
