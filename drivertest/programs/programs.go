// Package programs runs random programs against a store, and checks what the clients believe.
//
// Each feature of a lock may be right alone and wrong together with another: a downgrade with a
// lock taken again, an expiry with a store that comes back at the wrong moment. It is not practical
// to write a test for each pair, let alone for each pair under each fault. So a [Program] is drawn
// at random: two to four clients with different TTLs and margins, one to three names, every
// operation with every option, and faults of the network between them. While it runs, a small model
// of the promises (check.go) checks every grant, release and value.
//
// The conformance suite runs them where its harness asks for it (see [Harness]). In fake time
// (testing/synctest) a program takes less than a millisecond, and rapid makes a failing one smaller
// (pgregory.net/rapid) and printed as Go code, for [Replay].
//
// The suite counts which features have met on one name, and fails if a pair that the store supports
// has never met.
package programs

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"pgregory.net/rapid"
)

// Config says how to reach the stores.
type Config struct {
	// Stores returns the stores of a program, the same number each time: at least one, and a second
	// if there can be two that do not contend. Required.
	Stores func() []Store

	// TTL is the base of all times in a program.
	TTL time.Duration

	// FakeTime says that the stores live in this process and follow testing/synctest.
	FakeTime bool

	// Disturb disturbs the store in a way that its clients must survive (it stops a member, say),
	// until undo. nil: no disturbance. There are never two disturbances at once.
	Disturb func(t testing.TB) (undo func())

	// Programs is the least number of programs. 0: enough for all pairs to meet.
	Programs int

	// AtOnce is how many run concurrently. 0: two in fake time, 48 in real time.
	AtOnce int
}

// Store is a store that a program uses.
type Store struct {
	// Open makes a new connection, which the program closes.
	Open func(testing.TB) driver.Backend

	// Proxied does so through a network that can be made to fail, which the program closes after
	// the connection. nil: only the calls of the driver are disturbed, but not the requests that a
	// driver makes by itself.
	Proxied func(testing.TB) (driver.Backend, Network)

	// Forget loses all entries, as a restart without its memory would. nil: the store does not
	// forget, or the run cannot make it forget.
	Forget func()
}

// Network is the network of a driver's connections: a proxy, say, for each of the servers.
type Network interface {
	Partition()              // nothing passes, silently
	Heal()                   // withheld data is delivered, late, and the network works again
	Reset()                  // every connection breaks
	Slow(most time.Duration) // each server's answers are late by a separate time, until Heal
	Close()
}

// NumberEnv is the environment variable that overrides Config.Programs; SeedEnv that of the seed.
const (
	NumberEnv = "HASP_PROGRAMS"
	SeedEnv   = "HASP_PROGRAMS_SEED"
)

// Asked reports whether this run of the tests shall run programs in real time: then it needs
// servers that it may disturb and that no other test uses.
func Asked() bool { return os.Getenv(NumberEnv) != "" }

// suite is a Config with the values derived from it.
type suite struct {
	Config
	traits   driver.Traits
	can      abilities
	stores   int
	forgets  bool
	proxied  bool
	base     time.Duration
	fake     bool
	ops      []Op
	common   []Op
	features []feature
	ttls     []int // of clients, in TTLs
	pairs    []pair
	order    map[feature]int
	covers   coverage
	tb       testing.TB

	disturbed  atomic.Bool    // at this moment
	operators  []*hasp.Client // of all programs, in real time
	connecting chan struct{}  // room for connecting clients
}

// Run runs programs until enough have run and all pairs have met.
func Run(t *testing.T, c Config) {
	s := newSuite(t, c)
	if n, err := strconv.Atoi(os.Getenv(NumberEnv)); err == nil {
		s.Programs = n
	}
	seed := rand.Uint64()
	if n, err := strconv.ParseUint(os.Getenv(SeedEnv), 10, 64); err == nil {
		seed = n
	}
	t.Logf("%s=%d", SeedEnv, seed)
	if s.fake {
		s.checks(t, seed)
		s.Programs = 0 // the remaining programs are about pairs that have not met
	}
	s.direct(t, seed)
	t.Log(&s.covers)
	if missing := s.covers.missing(s.pairs); len(missing) > 0 && !t.Failed() {
		t.Errorf("%d of %d pairs never met on one name: %v", len(missing), len(s.pairs), missing)
	}
}

// Replay runs one program, as a failure prints it.
func Replay(t *testing.T, c Config, p Program) {
	s := newSuite(t, c)
	if f := s.runIn(t, p); f != nil {
		t.Fatalf("%s\n%s", f.kind, f.details)
	}
}

func newSuite(t testing.TB, c Config) *suite {
	stores := c.Stores()
	b := stores[0].Open(t)
	s := &suite{
		Config: c, traits: b.Traits(), stores: len(stores), forgets: stores[0].Forget != nil, proxied: stores[0].Proxied != nil, base: c.TTL, fake: c.FakeTime,
		tb: t, connecting: make(chan struct{}, 6), order: map[feature]int{}, covers: coverage{met: map[pair]int{}},
	}
	s.can = abilitiesOf(t, b)
	if err := b.Close(); err != nil {
		t.Fatalf("close of an unused backend: %v", err)
	}
	s.ops = operations(s)
	s.common = commonOf(s.traits)
	s.features = featuresOf(s.ops, s.traits)
	for i, f := range s.features {
		s.order[f] = i
	}
	s.pairs = pairsOf(s.features)
	s.ttls = []int{1, 1, 1, 2}
	if s.fake {
		s.ttls = append(s.ttls, 3) // no client waits for it
	}
	if !s.fake {
		s.operators = s.openOperators(t, stores)
		t.Cleanup(func() { closeOperators(t, s.operators) })
	}
	if s.AtOnce == 0 {
		s.AtOnce = 48
		if s.fake {
			s.AtOnce = 2
		}
	}
	if s.Programs == 0 {
		s.Programs = len(s.pairs)
	}
	return s
}

// abilitiesOf looks at the driver's types. A session is opened for its ticket, and closed.
func abilitiesOf(t testing.TB, b driver.Backend) (can abilities) {
	_, can.evict = b.(driver.Evicter)
	ses, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: time.Minute, Gone: func(string, error) {}})
	if err != nil {
		t.Fatalf("open a session: %v", err)
	}
	ticket := ses.Ticket(driver.Request{Name: "programs", ID: "programs-0", Units: driver.Whole, Capacity: driver.Whole})
	_, can.downgrade = ticket.(driver.Downgrader)
	if err := ses.Close(t.Context()); err != nil {
		t.Fatalf("close of an unused session: %v", err)
	}
	return can
}

// checks runs programs in fake time, by rapid: it makes one that fails smaller.
func (s *suite) checks(t *testing.T, seed uint64) {
	setFlag(t, "rapid.nofailfile", "true") // the program is printed, and that is enough
	setFlag(t, "rapid.checks", strconv.Itoa((s.Programs+s.AtOnce-1)/s.AtOnce))
	setFlag(t, "rapid.seed", strconv.FormatUint(seed, 10))
	program := rapid.Custom(func(rt *rapid.T) Program { return generate(rt, s) })
	t.Run("programs", func(t *testing.T) {
		for i := range s.AtOnce {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				rapid.Check(t, func(rt *rapid.T) {
					for range i {
						rapid.Uint64().Draw(rt, "apart from the others, which have the same seed")
					}
					p := program.Draw(rt, "program")
					var f *failure
					rapid.SyncTest(rt, func(rt *rapid.T) { f = s.run(p) })
					if f != nil {
						rt.Log(f.details)
						rt.Fatalf("%s", f.kind) // the same text for the same fault, by which rapid knows it again
					}
				})
			})
		}
	})
}

func setFlag(t *testing.T, name, value string) {
	f := flag.Lookup(name)
	old := f.Value.String()
	if err := flag.Set(name, value); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = flag.Set(name, old) })
}

// direct runs programs that are each about a pair that has not met yet, until all have, and then
// until enough have run. They are not made smaller: a failure in real time may need a moment that
// does not come again.
func (s *suite) direct(t *testing.T, seed uint64) {
	var wg sync.WaitGroup
	room := make(chan struct{}, s.AtOnce)
	most := s.Programs + 50*len(s.pairs) // or a pair cannot meet, which is then reported
	for i := 0; i < most && !t.Failed(); i++ {
		about := s.pairs[i%len(s.pairs)]
		if missing := s.covers.missing(s.pairs); len(missing) > 0 {
			about = missing[i%len(missing)]
		} else if i >= s.Programs {
			break
		}
		draw := rapid.Custom(func(rt *rapid.T) Program { return generateAbout(rt, s, about) })
		p := draw.Example(int(uint32(seed)) + i)
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			if f := s.runIn(t, p); f != nil {
				t.Errorf("program %d: %s\n%s\n\n%#v", i+1, f.kind, f.details, p)
			}
		})
	}
	wg.Wait()
}

// runIn runs a program in fake or real time.
func (s *suite) runIn(t *testing.T, p Program) (f *failure) {
	if !s.fake {
		return s.run(p)
	}
	synctest.Test(t, func(*testing.T) { f = s.run(p) })
	return f
}

// failure is a fault that a program has shown.
type failure struct {
	kind    string // the same for the same fault
	details string
}

func (f *failure) String() string { return fmt.Sprintf("%s: %s", f.kind, f.details) }
