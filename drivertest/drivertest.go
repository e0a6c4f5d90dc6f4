package drivertest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Harness tells the suite how to reach a store.
//
// The store should give the suite a separate area (a prefix, a directory, a database). All names
// except those of the names test are unique to the run, so leftovers of another run do no harm.
type Harness struct {
	// Open makes a new connection to the store, sharing as little with the others as
	// another machine would. The suite closes it. Required.
	Open func(t testing.TB) driver.Backend

	// URL opens the same store from another process, whose binary is this test's: the
	// driver's scheme is registered there. TestMain must call Main. "": the store cannot
	// be shared between processes, and the tests that kill and stop some are skipped.
	URL string

	// TTL is the shortest TTL that works well with the store: the tests wait for a few of them.
	// Default: one second, or the store's minimum. For a store that is bound to processes it is
	// only a bound on waiting.
	TTL time.Duration

	// Reopen restarts the store, as hard as its durability promise allows. Connections
	// made before may break. nil: tokens are not tested across a restart.
	Reopen func(t testing.TB)

	// Ops returns the number of requests the store has served so far. nil: the suite counts the
	// calls of the driver instead, and cannot detect a driver that polls inside one call.
	Ops func() int64

	// Counted opens a connection as Open does, and returns also how many requests it has sent so
	// far: packets will do, or writes to a socket. nil: the suite counts the calls of the driver,
	// and the changes of which its watches tell.
	Counted func(t testing.TB) (b driver.Backend, sent func() int64)

	// Gated opens a connection as Counted does, which calls gate for each write of a name before
	// the store has it, with a text that has the name's last part in it (the path of the request,
	// or its body), and answers with gate's error if there is one. nil: the store is not written
	// name by name, or no test can tell one from the others.
	Gated func(t testing.TB, gate func(ctx context.Context, text string) error) (b driver.Backend, sent func() int64)

	// Retention is for how long the store keeps at least, in the connections of Open, the record of
	// a name that no client uses: what it deletes then while clients come back is tested. 0: for
	// longer than a test runs.
	Retention time.Duration

	// Idle bounds what clients send in three TTLs in which nothing happens.
	Idle Idle

	// Cut severs a backend made by Open from the store, as a network that drops everything would,
	// and returns the function that heals it. nil: the suite withholds the driver's calls, which is
	// equivalent only for a driver that renews nothing by itself.
	Cut func(t testing.TB, b driver.Backend) (heal func())

	// AtOnce is how many locks a test may hold at the same time: for stores in which each of them
	// takes a server connection, or is renewed by a request. Default: a thousand.
	AtOnce int

	// Names is how many random names are tried: fewer for stores in which a list of names reads
	// each of them. Default: a thousand.
	Names int

	// Programs runs random programs on the store after all other tests: Harness.Run of package
	// drivertest/programs, which is a module apart because it links a library. nil: it runs none.
	Programs func(t *testing.T, h Harness)

	// FakeTime runs every test that needs no other process inside a separate testing/synctest
	// bubble: for stores that live in this process and use package time.
	FakeTime bool

	failed *atomic.Int32 // how many tests have, in this run
}

// Idle bounds the requests of clients for which nothing happens. 0: 36, which is four times what
// renewals take.
type Idle struct {
	Client   int64 // that has held a lock before; less than 0: nothing is counted
	Holder   int64
	Waiter   int64 // behind a holder
	Observer int64 // that follows a held name; where the store cannot be watched, one a second is added
}

// test is one test of the suite.
type test struct {
	name string
	run  func(*env)

	// needs says why the test does not apply to this store; "" if it does.
	needs func(*env) string

	// solo tests count resources of the whole process or store, or read all its queues, and run
	// alone, even among several runs of the suite (see quiet). They come before all others.
	solo bool

	// processes marks a test that starts other processes, which live in real time.
	processes bool
}

// theme is a file of tests.
type theme struct {
	name  string
	tests []test
}

func themes() []theme {
	return []theme{
		{"Contract", contractTests},
		{"IDs", idTests},
		{"Expiry", expiryTests},
		{"Listing", listingTests},
		{"Agreement", agreementTests},
		{"Exclusion", exclusionTests},
		{"FIFO", fifoTests},
		{"Try", tryTests},
		{"Cancel", cancelTests},
		{"ReadWrite", readWriteTests},
		{"Semaphore", semaphoreTests},
		{"Election", electionTests},
		{"Tokens", tokenTests},
		{"Names", nameTests},
		{"Input", inputTests},
		{"Ambiguous", ambiguousTests},
		{"Release", releaseTests},
		{"Loss", lossTests},
		{"Evict", evictTests},
		{"LockAll", lockAllTests},
		{"LockAny", lockAnyTests},
		{"Holding", holdingTests},
		{"Transfer", transferTests},
		{"Operate", operateTests},
		{"Administer", administerTests},
		{"Leaks", leakTests},
		{"Push", pushTests},
		{"Cost", costTests},
		{"Retention", retentionTests},
		{"Traits", traitTests},
		{"Process", processTests},
	}
}

// Run tests that a driver keeps its promises. It returns when all tests have ended, so that the
// caller may then close what the harness uses. It may run concurrently with other calls of Run, on
// other stores, but with no other tests: some of its tests count goroutines and descriptors.
func Run(t *testing.T, h Harness) {
	h = h.withDefaults(t)
	h.failed = new(atomic.Int32)
	t.Run("Promises", func(t *testing.T) {
		for _, th := range themes() {
			t.Run(th.name, func(t *testing.T) { th.run(t, h) })
		}
	})
	t.Run("Programs", func(t *testing.T) {
		if h.Programs == nil {
			t.Skip("Harness.Programs is nil: random programs are in the module drivertest/programs")
		}
		quiet.RLock()
		defer quiet.RUnlock()
		h.Programs(t, h)
	})
}

// quiet is held by solo tests for writing and by all others for reading: the testing package
// separates them only within one theme of one Run.
var quiet sync.RWMutex

// run runs the solo tests of a theme, waits until those of all themes have run, and then starts the
// others. They run concurrently, not theme by theme: they spend nearly all of their time waiting,
// for a TTL say, and a theme takes as long as its slowest test.
func (th theme) run(t *testing.T, h Harness) {
	for _, x := range th.tests {
		if x.solo {
			t.Run(x.name, func(t *testing.T) {
				// By Cleanup, registered first: the test ends only when its clients are closed.
				quiet.Lock()
				t.Cleanup(quiet.Unlock)
				x.within(t, h, func(t *testing.T) { x.inTrials(t, h) })
			})
		}
	}
	t.Parallel()
	for _, x := range th.tests {
		if !x.solo {
			t.Run(x.name, func(t *testing.T) {
				t.Parallel()
				quiet.RLock()
				t.Cleanup(quiet.RUnlock)
				x.within(t, h, func(t *testing.T) { x.inTrials(t, h) })
			})
		}
	}
}

// within runs body in fake time if this test uses it.
func (x test) within(t *testing.T, h Harness, body func(*testing.T)) {
	if h.FakeTime && !x.processes {
		synctest.Test(t, body)
		return
	}
	body(t)
}

// inTrials runs the test, in trials if time is real: fake time never runs short.
func (x test) inTrials(t *testing.T, h Harness) {
	if h.FakeTime && !x.processes {
		x.test(t, h)
		return
	}
	inTrials(t, func(r *trial) {
		again := h
		again.TTL <<= r.before // what one trial had no time for, the next one has twice as much for
		x.test(r, again)
	})
	if t.Failed() && h.failed != nil {
		h.failed.Add(1)
	}
}

func (x test) test(t testing.TB, h Harness) {
	e := &env{TB: t, h: h, fake: h.FakeTime && !x.processes}
	e.trial, _ = t.(*trial)
	if x.processes && h.URL == "" {
		e.Skip("the store lives in this process alone (Harness.URL is empty)")
	}
	e.traits = e.backend().Traits()
	if x.needs != nil {
		if why := x.needs(e); why != "" {
			e.Skip(why)
		}
	}
	x.run(e)
}

func (h Harness) withDefaults(t testing.TB) Harness {
	b := h.Open(t)
	traits := b.Traits()
	if err := b.Close(); err != nil {
		t.Fatalf("closing an unused backend: %v", err)
	}
	if h.TTL == 0 {
		h.TTL = max(time.Second, traits.MinTTL)
	}
	if h.TTL < traits.MinTTL {
		t.Fatalf("Harness.TTL (%s) is under the store's floor (%s)", h.TTL, traits.MinTTL)
	}
	return h
}
