package simulation

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp/redislock"
)

// config has a schedule's first line.
type config struct {
	strategy redislock.Strategy
	servers  int // the first is the master of the others
	cluster  int
	wait     int
	ttl      time.Duration
	address  int
	strict   bool // there are no exceptions
	calm     bool // nothing is forgotten: each refusal is a fault
}

func (c config) String() string {
	return fmt.Sprintf("world %s servers=%d wait=%d ttl=%d", c.strategy, c.servers, c.wait, int(c.ttl.Seconds()))
}

func parseConfig(line string) config {
	c := config{strategy: redislock.StrategyQueue, servers: 1, ttl: 10 * time.Second}
	for _, word := range strings.Fields(line)[1:] {
		name, text, is := strings.Cut(word, "=")
		n, _ := strconv.Atoi(text)
		switch {
		case word == "calm":
			c.calm = true
		case word == "strict":
			c.strict = true
		case !is:
			c.strategy = redislock.Strategy(word)
		case name == "servers":
			c.servers = n
		case name == "cluster":
			c.cluster = n
		case name == "wait":
			c.wait = n
		case name == "ttl":
			c.ttl = time.Duration(n) * time.Second
		}
	}
	return c
}

// schedule is a world, and what happens in it.
type schedule []string // the first line is the world's

func (s schedule) String() string { return strings.Join(s, "\n") }

func scheduleOf(text string) schedule {
	var s schedule
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			s = append(s, line)
		}
	}
	return s
}

var bubbleStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// run runs a schedule in fake time, and returns what it has found.
func (s schedule) run(t *testing.T, in *interpreter, edits []edit, trace func(string, ...any)) (wrong []violation) {
	synctest.Test(t, func(*testing.T) {
		w := newWorld(parseConfig(s[0]), in, edits)
		if trace != nil {
			w.trace = func(format string, args ...any) {
				trace("%8.3f "+format, append([]any{time.Since(bubbleStart).Seconds()}, args...)...)
			}
		}
		var cancel context.CancelFunc
		w.ctx, cancel = context.WithCancel(context.Background())
		time.Sleep(w.ttl + 2*time.Second) // the server is up for longer than a lease
		for _, line := range append(w.before(), s[1:]...) {
			w.step(line)
			if len(w.wrong) > 0 {
				break
			}
		}
		if len(w.wrong) == 0 {
			w.settle()
		}
		cancel()
		w.end()
		wrong = w.wrong
	})
	return wrong
}

// before has what happened first where nothing is forgotten: the server was used.
func (w *world) before() schedule {
	if !w.calm {
		return nil
	}
	return schedule{"client 9", "try 9 t", "pass 12", "close 9"}
}

// settle ends all faults. Then the server grants to each client after the longest TTL and a bit, in
// which each has asked.
func (w *world) settle() {
	w.heal()
	time.Sleep(5 * time.Second) // until those that were cut off have asked again
	longest := w.ttl
	for _, c := range w.clients {
		longest = max(longest, c.ttl)
	}
	for _, phase := range []string{"asks", "ends"} {
		for _, c := range w.clients {
			if c.closed || c.crashed {
				continue
			}
			name := fmt.Sprint("end", c.n) // in a cluster each slot has a quarantine
			go func() {
				err := w.acquire(c, name, true, false)
				if err == nil {
					w.stepRelease([]string{strconv.Itoa(c.n), name})
				} else if phase == "ends" {
					w.record.Lock()
					defer w.record.Unlock()
					w.reportLocked("no grant", "after all faults %s is told: %v", c, err)
				}
			}()
			synctest.Wait()
		}
		time.Sleep(longest + 3*time.Second)
	}
	w.settled()
}

// settled bounds the requests of each client when nothing happens any more: a holder's renewals, a
// waiter's, and what asks whether a holder has expired.
func (w *world) settled() {
	before := map[*client]int{}
	w.mu.Lock()
	for _, c := range w.clients {
		before[c] = c.requests
	}
	w.mu.Unlock()
	const ttls = 1
	time.Sleep(ttls * w.ttl)
	w.record.Lock()
	defer w.record.Unlock()
	most := map[*client]int{} // 12 a TTL, and for each hold, which a cluster has renewed by itself, 4
	for _, h := range w.holds {
		if !h.over {
			most[h.client] += 4
		}
	}
	for c, n := range before {
		if c.requests-n > ttls*(12+most[c]) {
			w.reportLocked("asks too often", "%s has sent %d requests in %d TTLs", c, c.requests-n, ttls)
		}
	}
}

// heal ends what the schedule has done to the servers and to the network.
func (w *world) heal() {
	w.dropHeld()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cluster > 0 {
		w.healCluster()
	} else {
		w.healServers()
	}
	for _, c := range w.clients {
		c.fates, c.deaf, c.cut, c.at = nil, false, c.crashed, w.address
		clear(c.slots)
	}
	w.breakSubs(func(*subscription) bool { return true })
}

// healCluster starts what has died, tells those that were replaced, brings the slots back that were
// moved, and gives each server with slots its share of the others as replicas: a master without
// replicas would grant nothing with wait=N, and its clients ask it about once a second.
func (w *world) healCluster() {
	for _, s := range w.servers {
		s.unaware = false
		if s.full = false; !s.alive {
			s.start(s.back(0))
		}
		if slices.Contains(w.groups, s.n) || slices.Contains(slices.Collect(maps.Values(w.owners)), s.n) {
			s.promote()
		}
	}
	for slot := range w.owners {
		w.move(slot, w.servers[w.groups[int(slot)%w.cluster]])
	}
	clear(w.owners)
	replicas := 0
	for _, s := range w.servers {
		if !slices.Contains(w.groups, s.n) {
			s.attach(w.servers[w.groups[replicas%w.cluster]])
			replicas++
		}
	}
}

func (w *world) healServers() {
	m := w.servers[w.address]
	if m.master != nil {
		m.promote()
	}
	if m.full = false; !m.alive {
		m.start(m.back(0))
	}
	for _, s := range w.servers {
		if s == m {
			continue
		}
		if !s.alive {
			s.start(s.back(0))
		}
		s.attach(m)
	}
}

// end lets every goroutine end: from now on each request is answered as a release is.
func (w *world) end() {
	w.mu.Lock()
	w.over = true
	for _, c := range w.clients {
		c.fates, c.cut = nil, false
	}
	w.mu.Unlock()
	w.dropHeld()
	var closing sync.WaitGroup
	for _, c := range w.clients {
		closing.Go(func() { c.Close() })
	}
	closing.Wait()
	time.Sleep(patience)
}
