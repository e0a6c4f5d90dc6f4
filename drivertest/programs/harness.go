package programs

import (
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
)

// Harness describes a store to random programs, beside the harness of the conformance suite. All
// fields are optional.
//
//	drivertest.Run(t, drivertest.Harness{Open: open, Programs: programs.Harness{}.Run})
type Harness struct {
	// Other makes a new connection to a store that has nothing to do with that of the suite,
	// although it may look the same to people: another prefix or database. nil: the programs use
	// only one store.
	Other func(t testing.TB) driver.Backend

	// Proxied opens the suite's store through a network that the programs disturb and close. nil:
	// they disturb only the driver's calls.
	Proxied func(t testing.TB) (driver.Backend, Network)

	// Disturb disturbs the store in a way that it must survive, until undo: it stops a member, say.
	// There are never two disturbances at once. nil: no disturbance.
	Disturb func(t testing.TB) (undo func())

	// AtOnce is how many programs run concurrently, each with up to five clients. 0: two in fake
	// time, 48 in real time.
	AtOnce int
}

// Run runs programs on the suite's store: in fake time always, in real time if [NumberEnv] is set.
// It is a [drivertest.Harness]'s Programs.
func (p Harness) Run(t *testing.T, h drivertest.Harness) {
	if !h.FakeTime && !Asked() {
		t.Skip(NumberEnv + " is not set: in real time random programs take a minute or more, and are run by make programs")
	}
	Run(t, Config{
		TTL: h.TTL, FakeTime: h.FakeTime, Disturb: p.Disturb, AtOnce: p.AtOnce,
		Stores: func() []Store {
			stores := []Store{{Open: h.Open, Proxied: p.Proxied}}
			if p.Other != nil {
				stores = append(stores, Store{Open: p.Other})
			}
			return stores
		},
	})
}
