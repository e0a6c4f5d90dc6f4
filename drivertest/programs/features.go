package programs

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/hasplock/hasp/driver"
)

// feature is an operation, an option or a fault: anything that can meet another feature on one
// name.
type feature string

type pair [2]feature

// kind is the use of a name. A name is of one kind for the length of a program.
type kind int

const (
	wholeKind kind = iota
	permitKind
	bothKinds
)

func (o Op) acquires() bool {
	return slices.Contains([]Op{Lock, TryLock, RLock, TryRLock, Acquire, TryAcquire, Campaign, LockAll, LockAny, Pool}, o)
}

func (o Op) onLease() bool {
	return slices.Contains([]Op{Release, Downgrade, Publish, Progress}, o)
}

func (o Op) fault() bool {
	return slices.Contains([]Op{LoseAnswers, FailRequests, LateAnswers, LateRequests, Silence, Deaf, CutCalls, Reset, Kill, Forget, Disturb}, o)
}

// kinds says where a feature can be used.
func (f feature) kinds() kind {
	switch f {
	case "Lock", "TryLock", "RLock", "TryRLock", "Campaign", "Downgrade", "Publish", "Reentrant", "Pool":
		return wholeKind
	case "Acquire", "TryAcquire":
		return permitKind
	}
	return bothKinds
}

// kind is where a pair can meet: on a semaphore only if it must.
func (p pair) kind() kind {
	if p[0].kinds() == permitKind || p[1].kinds() == permitKind {
		return permitKind
	}
	return wholeKind
}

func (p pair) possible() bool {
	a, b := p[0].kinds(), p[1].kinds()
	return a == bothKinds || b == bothKinds || a == b
}

// abilities are the abilities of a store beside its Traits, as its types show.
type abilities struct {
	downgrade, evict bool
}

// operations are those that a store has.
func operations(s *suite) []Op {
	t, can := s.traits, s.can
	ops := []Op{Lock, Release, TryLock, Cancel, LockAll, LockAny, Pool, Progress, ShortWaits, Close,
		LoseAnswers, FailRequests, LateAnswers, Silence, Deaf, CutCalls, Kill}
	add := func(ok bool, more ...Op) {
		if ok {
			ops = append(ops, more...)
		}
	}
	add(t.Shared, RLock, TryRLock)
	add(t.Counting, Acquire, TryAcquire)
	add(t.Values, Campaign, Publish)
	add(t.Shared && can.downgrade, Downgrade)
	add(can.evict, Evict)
	add(s.fake, LateRequests) // a driver's calls must not be made late; a real network's are by faultnet
	add(s.proxied, Reset)
	add(s.forgets, Forget)
	add(s.Disturb != nil, Disturb)
	return ops
}

// commonOf are the operations that make up most of a program.
func commonOf(t driver.Traits) []Op {
	ops := []Op{Lock, Release, Lock, Release, TryLock}
	if t.Shared {
		ops = append(ops, RLock)
	}
	return ops
}

func featuresOf(ops []Op, t driver.Traits) []feature {
	fs := []feature{"Within", "Reentrant", "MinHold", "MaxHold", "Stall", "Bounded", "Do", "Bind"}
	if t.FIFO {
		fs = append(fs, "Ask", "Revocable", "Deadlock")
	}
	for _, o := range ops {
		fs = append(fs, feature(o))
	}
	return fs
}

// pairsOf lists the features that can meet. A feature also meets itself.
func pairsOf(fs []feature) []pair {
	var ps []pair
	for i, a := range fs {
		for _, b := range fs[i:] {
			if p := (pair{a, b}); p.possible() && !(a == b && b == "Forget") {
				ps = append(ps, p)
			}
		}
	}
	return ps
}

// coverage counts the programs in which each pair has met. Many programs run at once.
type coverage struct {
	mu       sync.Mutex
	programs int
	met      map[pair]int
}

// add counts the features that were used on one name of a program, each as often as it was used.
func (c *coverage) add(order map[feature]int, used map[feature]int) {
	fs := make([]feature, 0, len(used))
	for f := range used {
		fs = append(fs, f)
	}
	sort.Slice(fs, func(i, j int) bool { return order[fs[i]] < order[fs[j]] })
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, a := range fs {
		if used[a] > 1 {
			c.met[pair{a, a}]++
		}
		for _, b := range fs[i+1:] {
			c.met[pair{a, b}]++
		}
	}
}

// missing are the pairs that have never met.
func (c *coverage) missing(of []pair) (missing []pair) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range of {
		if c.met[p] == 0 {
			missing = append(missing, p)
		}
	}
	return missing
}

// String tells how many pairs there are, and which met least.
func (c *coverage) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	type count struct {
		p pair
		n int
	}
	var counts []count
	for p, n := range c.met {
		counts = append(counts, count{p, n})
	}
	sort.Slice(counts, func(i, j int) bool { return counts[i].n < counts[j].n })
	var least []string
	for _, c := range counts[:min(5, len(counts))] {
		least = append(least, fmt.Sprintf("%s with %s: %d", c.p[0], c.p[1], c.n))
	}
	return fmt.Sprintf("%d programs, %d pairs; least often met: %s", c.programs, len(counts), strings.Join(least, ", "))
}
