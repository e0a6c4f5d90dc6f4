package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

func ms(n float64) millis { return millis(n * float64(time.Millisecond)) }

// good, bad, missing, caught and awake are one of each kind of result.
func someResults() (good, bad, missing, caught, awake *result) {
	good = &result{Store: "redis", Theirs: "redsync", Version: "redsync v4", Acquisitions: 246, TheirsWakeOurs: ms(431.7), OursWakeTheirs: ms(2.84),
		TheirsKilled: ms(3012), OursKilled: ms(0.04), TheirsOverrun: "at once, and at unlock", OursOverrun: "at once, and at unlock", Lapses: 2}
	bad = &result{Store: "etcd", Theirs: "etcdctl", Violations: 3, Problems: []problem{{"exclusion", "the counter is \"197\""}, {"tries", "x"}}}
	missing = &result{Store: "mysql", Theirs: "mariadb", Missing: "no apt-get\nno root"}
	caught = &result{Store: "control", Theirs: "blind", Control: true, Caught: true, Violations: 101, Problems: []problem{{"tries", "had it"}}}
	awake = &result{Store: "control", Theirs: "blunt", Control: true, Problems: []problem{{"tries", "had it"}}}
	return good, bad, missing, caught, awake
}

func TestTable(t *testing.T) {
	good, bad, missing, caught, awake := someResults()
	var b strings.Builder
	table(&b, []*result{good, bad, missing, caught, awake})
	const want = head + `| redis | redsync (redsync v4) | 246 | 0 | 432 | 2.8 | 3012 | 0.0 | at once, and at unlock | at once, and at unlock |
| etcd | etcdctl | 0 | 3 |  |  |  |  |  |  |
| mysql | mariadb | 0 | not run: no apt-get no root |  |  |  |  |  |  |
| control | blind | 0 | 101, caught |  |  |  |  |  |  |
| control | blunt | 0 | 0, not caught |  |  |  |  |  |  |
`
	if got := b.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestComplain(t *testing.T) {
	good, bad, missing, caught, awake := someResults()
	for _, c := range []struct {
		r    *result
		want string
	}{
		{good, "interop: redis + redsync: short leases lapsed before their time 2 times\n"},
		{bad, "interop: etcd + etcdctl: exclusion: the counter is \"197\"\ninterop: etcd + etcdctl: tries: x\n"},
		{missing, "interop: mysql + mariadb: could not be run: no apt-get\nno root\n"},
		{caught, ""},
		{awake, "interop: control + blunt: the check has not caught this control; it found [{tries had it}]\n"},
	} {
		var b strings.Builder
		complain(&b, c.r)
		if got := b.String(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestJSON(t *testing.T) {
	good, _, _, _, _ := someResults()
	text, err := json.Marshal(good)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"Acquisitions":246`, `"Violations":0`, `"Lapses":2`, `"TheirsWakeOurs":431.700`, `"OursKilled":0.040`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s has no %s", text, want)
		}
	}
}

// A run is good if something was run and all of it is good; in CI nothing may be missing.
func TestVerdict(t *testing.T) {
	good, bad, missing, caught, awake := someResults()
	for _, c := range []struct {
		name         string
		results      []*result
		bad, badInCI bool
	}{
		{"nothing matches", nil, true, true},
		{"all good", []*result{good, caught}, false, false},
		{"one bad", []*result{good, bad}, true, true},
		{"one not run", []*result{good, missing}, false, true},
		{"a control that was not caught", []*result{good, awake}, true, true},
	} {
		if err := verdict(c.results, false); (err != nil) != c.bad {
			t.Errorf("%s: %v", c.name, err)
		}
		if err := verdict(c.results, true); (err != nil) != c.badInCI {
			t.Errorf("%s, in CI: %v", c.name, err)
		}
	}
}

// A control is caught if every one of its steps has failed, and no other counts for it.
func TestCaught(t *testing.T) {
	r := &result{Problems: []problem{{"tries", ""}, {"exclusion", ""}, {"exclusion", ""}}}
	for _, c := range []struct {
		steps string
		want  bool
	}{{"tries", true}, {"exclusion,tries", true}, {"tries,ours killed", false}, {"ours killed", false}} {
		if got := r.caught(strings.Split(c.steps, ",")); got != c.want {
			t.Errorf("%s: %v", c.steps, got)
		}
	}
}

func TestNote(t *testing.T) {
	m := &match{r: &result{}}
	m.note(nil, "exclusion")
	m.note(violation{3, "three lost"}, "exclusion")
	m.note(errors.Join(errors.New("and"), violation{1, "one lost"}), "tries")
	m.note(lapse{"a lease"}, "theirs killed")
	if m.r.Violations != 4 || len(m.r.Problems) != 3 || m.r.good() {
		t.Errorf("%d violations, %q", m.r.Violations, m.r.Problems)
	}
}
