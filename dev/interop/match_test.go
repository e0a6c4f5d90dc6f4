package main

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

// newMatch is a match of fakes.
func newMatch(t *testing.T, ours, theirs string) *match {
	dir := t.TempDir()
	return &match{
		pair: pair{name: "a", life: fixed, pause: 1}, dir: dir, r: &result{}, shortest: time.Second,
		start: startFake(t, dir, map[bool]string{true: ours, false: theirs}),
	}
}

// Two clients that do as they should pass every step.
func TestMatchOfGoodClients(t *testing.T) {
	t.Parallel()
	m := newMatch(t, "good", "good")
	m.play()
	r := m.r
	if !r.good() || r.Violations != 0 {
		t.Fatalf("%d violations, problems %v", r.Violations, r.Problems)
	}
	if want := 2*rounds + 2 + 2*2*shakes + 4*2; r.Acquisitions != want {
		t.Errorf("%d acquisitions, want %d", r.Acquisitions, want)
	}
	if r.Version != "good" || r.TheirsOverrun != "at once, and at unlock" || r.OursOverrun != "at once, and at unlock" {
		t.Errorf("version %q; told after an overrun: theirs %q, ours %q", r.Version, r.TheirsOverrun, r.OursOverrun)
	}
	for what, took := range map[string]millis{"theirs killed": r.TheirsKilled, "ours killed": r.OursKilled} {
		if time.Duration(took) <= 0 {
			t.Errorf("%s: the waiter had the lock after %s", what, took)
		}
	}
}

// Each fault is found in the steps that are there to find it.
func TestMatchFindsFaults(t *testing.T) {
	for _, c := range []struct {
		ours, theirs string
		steps        []string
		text         string // in each step's problem
		violations   bool
	}{
		{"good", "blind", []string{"exclusion", "tries", "theirs wake ours", "ours wake theirs"}, "", true},
		{"blind", "good", []string{"exclusion", "tries", "theirs wake ours", "ours wake theirs"}, "", true},
		{"good", "blunt", []string{"theirs overrun"}, "a third has it by a try", true},
		{"blunt", "good", []string{"ours overrun"}, "a third has it by a try", true},
		{"good", "hasty", []string{"theirs overrun"}, "before the lease", true},
		{"believer", "good", []string{"ours overrun"}, `we are told "held"`, false},
		{"good", "mortal", []string{"exclusion", "theirs wake ours"}, "the other has ended: out of memory", false},
		{"good", "babbler", []string{"exclusion", "theirs wake ours"}, `the other answers "error: two lines"`, false},
		{"good", "babbler", []string{"theirs killed"}, `answers "error: two lines"`, false},
	} {
		t.Run(c.ours+" and "+c.theirs+", "+c.steps[0], func(t *testing.T) {
			t.Parallel()
			m := newMatch(t, c.ours, c.theirs)
			m.expect = c.steps
			if c.theirs == "hasty" {
				m.shortest = 10 * time.Second // which leaves a busy machine time to be early
			}
			m.play()
			if !m.r.caught(c.steps) || len(m.r.Problems) != len(c.steps) {
				t.Fatalf("want a problem in each of %q, got %q", c.steps, m.r.Problems)
			}
			for _, p := range m.r.Problems {
				if !strings.Contains(p.Text, c.text) {
					t.Errorf("%s: %q says nothing of %q", p.Step, p.Text, c.text)
				}
			}
			if got := m.r.Violations > 0; got != c.violations {
				t.Errorf("%d violations", m.r.Violations)
			}
			if m.r.good() {
				t.Error("and the pair is good")
			}
		})
	}
}

// A client that does not come up is told once, with what it has complained of, and not
// taken for one that is not installed.
func TestMatchWithoutClient(t *testing.T) {
	t.Parallel()
	for theirs, text := range map[string]string{
		"stillborn": "the other has ended: no such database", "foreigner": `the other begins with "usage: foreigner [-h]"`,
	} {
		m := newMatch(t, "good", theirs)
		m.play()
		if want := []problem{{"exclusion", text}}; !slices.Equal(m.r.Problems, want) {
			t.Errorf("problems %q, want %q", m.r.Problems, want)
		}
		if m.r.Missing != "" || m.r.good() {
			t.Errorf("missing %q, good %v", m.r.Missing, m.r.good())
		}
	}
}

// A lapse has the step played again with a lease of twice the length and a fresh name, a few
// times; anything else is final.
func TestPatiently(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		errs   []error // of one attempt after the other
		err    error
		leases []time.Duration
	}{
		{"passes", []error{nil}, nil, []time.Duration{1}},
		{"lapses once", []error{lapse{"x"}, nil}, nil, []time.Duration{1, 2}},
		{"lapses for ever", slices.Repeat([]error{lapse{"x"}}, 9), lapse{"x"}, []time.Duration{1, 2, 4, 8}},
		{"fails", []error{violation{1, "y"}, nil}, violation{1, "y"}, []time.Duration{1}},
		{"fails after a lapse", []error{lapse{"x"}, violation{1, "y"}, nil}, violation{1, "y"}, []time.Duration{1, 2}},
	} {
		m := newMatch(t, "good", "good")
		m.shortest = 1
		var leases []time.Duration
		names := map[string]bool{}
		err := m.patiently(step{c.name, func(m *match) error {
			leases = append(leases, m.lease)
			names[m.nameOf(true)] = true
			return c.errs[len(leases)-1]
		}})
		m.end()
		if err != c.err || !slices.Equal(leases, c.leases) || m.r.Lapses != len(leases)-1 || len(names) != len(leases) {
			t.Errorf("%s: %v with leases %v on names %v, %d lapses; want %v, %v", c.name, err, leases, names, m.r.Lapses, c.err, c.leases)
		}
	}
}

// That the waiter has the lock too early is excused only by a holder that reports the loss.
func TestIntruded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		lease  time.Duration
		lapses bool
	}{{time.Millisecond, true}, {time.Hour, false}} {
		m := newMatch(t, "good", "good")
		var err error
		if m.short, err = m.start("the holder", false, c.lease); err != nil {
			t.Fatal(err)
		}
		if _, err := m.short.do("lock", "a"); err != nil {
			t.Fatal(err)
		}
		err = m.intruded(violation{1, "had it"})
		if errors.As(err, new(lapse)) != c.lapses || errors.As(err, new(violation)) == c.lapses {
			t.Errorf("lease %s: %T %v", c.lease, err, err)
		}
		if ended := errors.New("has ended"); m.intruded(ended) != ended {
			t.Error("another error is not handed on")
		}
		m.end()
	}
}

// Locks that dead clients may still hold do not block later clients, unless the name has a meaning.
func TestNames(t *testing.T) {
	m := &match{pair: pair{name: "a", theirOwn: "hasp/a"}}
	for _, c := range []struct {
		begun        int
		life         life
		ours, theirs string
	}{{0, renewed, "a", "hasp/a"}, {1, fixed, "a", "hasp/a"}, {2, renewed, "a-2", "hasp/a-2"}, {3, fixed, "a-3", "hasp/a-3"}, {2, bound, "a", "hasp/a"}} {
		m.begun, m.life = c.begun, c.life
		if o, th := m.nameOf(true), m.nameOf(false); o != c.ours || th != c.theirs {
			t.Errorf("begun %d times: %q and %q, want %q and %q", c.begun, o, th, c.ours, c.theirs)
		}
	}
}
