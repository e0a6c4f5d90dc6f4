package programs

import (
	"slices"
	"time"

	"pgregory.net/rapid"
)

// generate draws a program. Each has a main pair of features, which come up more often than others,
// so that every pair meets, and in a small program.
func generate(t *rapid.T, s *suite) Program {
	pair := s.pairs[rapid.IntRange(0, len(s.pairs)-1).Draw(t, "pair")]
	return generateAbout(t, s, pair)
}

func generateAbout(t *rapid.T, s *suite, about pair) Program {
	permits := about.kind() == permitKind
	g := &generator{T: t, suite: s, about: about[:], faults: rapid.Bool().Draw(t, "faults")}
	// Many faults take a third: a downgraded lease that is transferred harms only readers.
	for range rapid.IntRange(0, 2).Draw(t, "more") {
		g.about = append(g.about, rapid.SampledFrom(s.features).Draw(t, "and"))
	}
	ttls := g.ttls
	if !g.fake && g.chance(20) {
		// Short TTLs hide a missing wake-up: the waiter soon looks by itself. Such a program may
		// take a minute, and most of that is sleep.
		g.patient, g.faults, ttls = true, false, []int{1, 20, 20}
	}
	clients := rapid.IntRange(2, 4).Draw(t, "clients")
	var p Program
	for range clients {
		c := Client{
			Store: g.store(), TTL: g.base * time.Duration(g.pick(ttls...)),
			Margin: g.base / 20 * time.Duration(g.pick(0, 0, 0, 1, 5)),
		}
		if g.proxied {
			c.Slow = time.Millisecond * time.Duration(g.pick(0, 0, 5, 30))
		}
		p.Clients = append(p.Clients, c)
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "names") {
		var n Name
		if s.traits.Counting && (i == 0 && permits || i > 0 && g.chance(4)) {
			n.Permits = int64(g.pick(1, 2, 3, 5))
		}
		p.Names = append(p.Names, n)
	}
	p.Clients[0].Store = 0
	p.Steps = g.scenario(&p)
	steps := rapid.IntRange(4, 20).Draw(t, "steps")
	if len(p.Steps) > 0 {
		steps /= 3
	}
	for range steps {
		p.Steps = append(p.Steps, g.step(&p))
	}
	return p
}

type generator struct {
	*rapid.T
	*suite
	about   []feature
	faults  bool
	patient bool // no faults, and time for faults that show only if no waiter looks by itself
}

func (g *generator) chance(oneIn int) bool {
	return rapid.IntRange(0, oneIn-1).Draw(g.T, "") == oneIn-1
}

// pick is one of the numbers, the first the simplest.
func (g *generator) pick(of ...int) int { return rapid.SampledFrom(of).Draw(g.T, "") }

func (g *generator) store() int {
	if g.stores < 2 || !g.chance(5) {
		return 0
	}
	return 1
}

// span is a time at which things happen: none, a moment, and those around the instants at which
// a lease is renewed, is no longer trusted, and expires.
func (g *generator) span() time.Duration {
	T := g.base
	if g.patient {
		return rapid.SampledFrom([]time.Duration{0, 0, time.Millisecond, T / 100, T / 10, T, 2 * T, 3 * T}).Draw(g.T, "")
	}
	if !g.fake { // in real time a program should not sleep most of the time
		return rapid.SampledFrom([]time.Duration{0, 0, 0, 0, time.Millisecond, time.Millisecond, T / 100, T / 100, T / 10, T / 10, T / 3, T}).Draw(g.T, "")
	}
	trust := T - T/100 - T/10
	return rapid.SampledFrom([]time.Duration{
		0, time.Millisecond, T / 100, T / 10, T / 3, trust - time.Millisecond, trust, trust + time.Millisecond,
		T - T/100, T, T + time.Millisecond, 2 * T,
	}).Draw(g.T, "")
}

// instant is a time about as long as a request takes.
func (g *generator) instant() time.Duration {
	if g.fake { // nothing takes time, but for what a step makes late
		return g.base / 100
	}
	return rapid.SampledFrom([]time.Duration{100, 300, 1000, 3000, 10000}).Draw(g.T, "") * time.Microsecond
}

func (g *generator) step(p *Program) Step {
	s := Step{
		Do:     g.op(),
		Client: g.client(len(p.Clients)),
		Lease:  rapid.IntRange(0, 5).Draw(g.T, ""),
	}
	if g.chance(3) {
		s.Wait = g.span()
	}
	if len(p.Names) > 1 && g.chance(4) {
		s.Name = rapid.IntRange(1, len(p.Names)-1).Draw(g.T, "")
	}
	if g.faults && !s.Do.fault() && g.chance(4) {
		if s.Lose = rapid.Bool().Draw(g.T, ""); !s.Lose {
			s.Late = g.span()
		}
	}
	switch {
	case s.Do.acquires():
		s.Do = fitting(s.Do, p.Names[s.Name], g.suite)
		if s.Do == Pool && slices.ContainsFunc(p.Names, func(n Name) bool { return n.Permits > 0 }) {
			s.Do = LockAny
		}
		s.Units = int64(g.pick(1, 1, 2, 3, 5))
		if g.wants("Bounded") {
			s.Time = max(g.span(), time.Millisecond)
		}
		g.options(&s)
	case s.Do.fault():
		s.Units = int64(g.pick(1, 2, 3))
		s.Time = g.span()
		if s.Do == CutCalls {
			s.Time = g.instant()
		}
	case s.Do == ShortWaits:
		s.Time = g.instant()
	}
	return s
}

// client is the first more often than others: much happens between goroutines of one client.
func (g *generator) client(of int) int {
	if g.chance(3) {
		return 0
	}
	return rapid.IntRange(0, of-1).Draw(g.T, "")
}

func (g *generator) isAbout(f feature) bool { return slices.Contains(g.about, f) }

// op draws the operation. A program in which nothing is acquired and released shows nothing, so
// these come up most often; and only every second program has faults, since they hide more than
// they show in a program with another subject.
func (g *generator) op() Op {
	switch rapid.IntRange(0, 9).Draw(g.T, "") {
	case 0, 1, 2, 3:
		return rapid.SampledFrom(g.common).Draw(g.T, "")
	case 4, 5, 6:
		if o := Op(rapid.SampledFrom(g.about).Draw(g.T, "")); slices.Contains(g.ops, o) && !(g.patient && o.fault()) {
			return o
		}
		return rapid.SampledFrom(g.common).Draw(g.T, "")
	case 7:
		if g.isAbout("Publish") {
			return Campaign // without a term there is nothing to publish
		}
	case 8:
		if o := rapid.SampledFrom(g.ops).Draw(g.T, ""); !o.fault() {
			return o
		}
		return Release
	}
	if o := rapid.SampledFrom(g.ops).Draw(g.T, ""); g.faults || !o.fault() {
		return o
	}
	return Release
}

// wants draws whether an option is used.
func (g *generator) wants(f feature) bool {
	if g.isAbout(f) {
		return g.chance(2)
	}
	return g.chance(20)
}

func (g *generator) options(s *Step) {
	o := &s.Opts
	T := g.base
	if o.Within = g.wants("Within"); o.Within || g.isAbout("Reentrant") {
		o.Reentrant = g.chance(2)
		o.Within = o.Within || o.Reentrant
	}
	o.Do = g.wants("Do")
	if o.Bind = g.wants("Bind"); o.Bind && g.isAbout("Bind") {
		o.Within = true
	}
	if g.wants("MinHold") {
		o.MinHold = T / time.Duration(g.pick(10, 2, 1))
	}
	if g.wants("MaxHold") {
		o.MaxHold = max(o.MinHold, T/time.Duration(g.pick(10, 3, 1)))
	}
	if g.wants("Stall") {
		o.Stall = T / time.Duration(g.pick(10, 3, 1))
	}
	if g.traits.FIFO {
		o.Ask, o.Revocable, o.Deadlock = g.wants("Ask"), g.wants("Revocable"), g.wants("Deadlock")
	}
}

// fitting makes an acquisition fit the name.
func fitting(o Op, n Name, s *suite) Op {
	switch {
	case o == LockAll, o == LockAny, o == Pool:
	case n.Permits > 0 && (o == TryLock || o == TryRLock):
		return TryAcquire
	case n.Permits > 0 && o != TryAcquire:
		return Acquire
	case n.Permits == 0 && o == Acquire:
		return Lock
	case n.Permits == 0 && o == TryAcquire:
		return TryLock
	}
	return o
}
