package main

import (
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const ms = int64(time.Millisecond)

// round has contenders hold for 1 ms each, 0.2 ms after one another, from 1,000 ms on.
func round(who ...int) (all []turn) {
	for i, w := range who {
		got := 1000*ms + int64(i)*(ms+ms/5)
		all = append(all, turn{Who: w, Asked: int64(i) * ms, Got: got, Left: got + ms})
	}
	return all
}

func TestEvaluate(t *testing.T) {
	fair := evaluate(round(0, 1, 2, 3, 0, 1, 2, 3), 4, 0, 1e18, 16, 8*time.Millisecond)
	if fair.Acquisitions != 8 || fair.Inversions != 0 || fair.Least != 2 || fair.Most != 2 || math.Abs(fair.Jain-1) > 1e-9 {
		t.Errorf("of a fair round: %+v", fair)
	}
	if math.Abs(fair.P50-200) > 1 || fair.Commands != 2 || fair.CPU != 1000 {
		t.Errorf("gap %.0f µs, %.1f commands, %.0f µs of CPU; want 200, 2 and 1000", fair.P50, fair.Commands, fair.CPU)
	}

	unfair := evaluate(round(0, 0, 0, 0), 4, 0, 1e18, 8, 0)
	if unfair.Least != 0 || unfair.Most != 4 || math.Abs(unfair.Jain-0.25) > 1e-9 {
		t.Errorf("one contender has had it all, and gives %+v", unfair)
	}

	late := round(0, 1, 2)
	late[2].Asked = -1000 * ms // waited for a second, while two who came later were served
	if f := evaluate(late, 3, 0, 1e18, 0, 0); f.Inversions != 2 {
		t.Errorf("%d inversions, want 2", f.Inversions)
	}

	if f := evaluate(round(0, 1, 2, 3), 4, 1002*ms, 1e18, 0, 0); f.Acquisitions != 2 {
		t.Errorf("%d acquisitions counted, two were before the time", f.Acquisitions)
	}
	if f := evaluate(nil, 4, 0, 1e18, 0, 0); f.Error == "" {
		t.Error("figures of nothing")
	}
}

// outcomeOf is a contestant with such medians in its repetitions.
func outcomeOf(who string, r role, p50 ...float64) (o outcome) {
	o = outcome{Who: who, Role: r}
	for _, v := range p50 {
		o.Reps = append(o.Reps, figures{Acquisitions: 1, P50: v})
	}
	return o
}

// A ratio is of figures of the same repetition: a machine that was slow for one of them was
// so for both.
func TestRatioByRepetition(t *testing.T) {
	tab := table{Store: "s", Scenario: "S1", Outcomes: []outcome{
		outcomeOf("floor", floor, 100, 1000, 100),
		outcomeOf("ours", ours, 110, 1100, 110),
		outcomeOf("slow", peer, 400, 4000, 400),
		outcomeOf("quick", peer, 220, 2200, 220),
	}}
	tab.compare()
	o := tab.Outcomes[1]
	if o.ToFloor == nil || math.Abs(o.ToFloor.Median-1.1) > 1e-9 || !o.ToFloor.agrees() {
		t.Errorf("to the floor %+v, want 1.1 in all", o.ToFloor)
	}
	if o.Peer != "quick" || math.Abs(o.ToPeer.Median-0.5) > 1e-9 {
		t.Errorf("best peer %s, %+v; want quick at 0.5", o.Peer, o.ToPeer)
	}
}

func TestDisagreementIsNotPrinted(t *testing.T) {
	tab := table{Store: "s", Scenario: "S1", Title: "title", Outcomes: []outcome{
		outcomeOf("floor", floor, 100, 100, 100),
		outcomeOf("ours", ours, 50, 100, 300),
	}}
	tab.compare()
	var page strings.Builder
	tab.markdown(&page)
	if text := page.String(); !strings.Contains(text, "repetitions disagree") || strings.Contains(text, "x floor | 1.00") {
		t.Errorf("a ratio between 0.5 and 3 was printed:\n%s", text)
	}
}

func TestSpanLeavesOutAQuarter(t *testing.T) {
	if s := spanOf([]float64{1, 1.1, 0.9, 50}); s.Max != 1.1 || s.Min != 0.9 {
		t.Errorf("of four, the one far out stays: %+v", s)
	}
	if s := spanOf([]float64{1, 1.1, 50}); s.Max != 50 || s.agrees() {
		t.Errorf("of three, none may be left out: %+v", s)
	}
}

// Rates are better when higher.
func TestBest(t *testing.T) {
	tab := table{Rates: true, Outcomes: []outcome{
		{Who: "slow", Role: peer, Median: figures{Rate: 10}},
		{Who: "quick", Role: peer, Median: figures{Rate: 20}},
		{Who: "failed", Role: peer, Median: figures{Error: "no"}},
	}}
	if i := tab.best(peer); tab.Outcomes[i].Who != "quick" {
		t.Errorf("best is %s", tab.Outcomes[i].Who)
	}
}

// The pages of a run can be written again from its figures, and say where a rival is better.
func TestPageFromFigures(t *testing.T) {
	fast := func(who string, r role, rate float64) outcome {
		return outcome{Who: who, Role: r, Reps: []figures{{Rate: rate}, {Rate: rate}, {Rate: rate}}}
	}
	tables := []table{
		{Store: "etcd", Scenario: "S2", Title: "title", Rates: true, Outcomes: []outcome{
			fast("floor", floor, 100), fast("hasp", ours, 5000), fast("concurrency.Mutex", peer, 8000),
		}},
		{Store: "etcd", Scenario: "S1", Title: "title", Outcomes: []outcome{
			outcomeOf("floor", floor, 100, 100, 100), outcomeOf("hasp", ours, 110, 120, 110), outcomeOf("concurrency.Mutex", peer, 300, 200, 900),
		}},
		{Store: "etcd", Scenario: "S6", Title: "title", Outcomes: []outcome{
			outcomeOf("hasp", ours, 500, 500, 500), outcomeOf("concurrency.Mutex", peer, 151_200, 151_200, 151_200),
		}},
	}
	for i := range tables {
		tables[i].compare()
	}
	dirs := []string{t.TempDir(), t.TempDir()}
	if err := (&report{Machine: "a machine", When: "today", Reps: 3, Tables: tables}).write(dirs[0]); err != nil {
		t.Fatal(err)
	}
	if err := command([]string{"-figures", filepath.Join(dirs[0], "dev", "bench", "results.json"), "-runs", "0", "-out", dirs[1]}); err != nil {
		t.Fatal(err)
	}
	for file, wants := range map[string][]string{
		"docs/PERFORMANCE.md": {
			"| concurrency.Mutex | 300 µs | 8,000/s | 151 ms | - | - |",
			"- **concurrency.Mutex** (etcd): 64 names at once 8,000/s where hasp has 5,000/s. hasp's values",
		},
		"dev/bench/RESULTS.md":       {"| hasp | 110 | **1.10** (1.10–1.20) of floor | repetitions disagree |"},
		"docs/img/perf-handover.svg": {">151 ms</text>", ">concurrency.Mutex</text>"},
	} {
		var texts [2]string
		for i, dir := range dirs {
			text, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				t.Fatal(err)
			}
			texts[i] = string(text)
		}
		if texts[0] != texts[1] {
			t.Errorf("%s of the run:\n%s\nand from its figures:\n%s", file, texts[0], texts[1])
		}
		for _, want := range wants {
			if !strings.Contains(texts[0], want) {
				t.Errorf("%s has no %q:\n%s", file, want, texts[0])
			}
		}
	}
}

// A repetition without figures is named on both pages: the median of the others would hide it.
func TestFailedRepetitionsAreNamed(t *testing.T) {
	tab := table{Store: "mysql", Scenario: "S1", Outcomes: []outcome{
		{Who: "hasp table", Role: ours, Reps: []figures{{P50: 100}, {Error: "nothing was acquired"}, {Error: "other"}}},
	}}
	tab.compare()
	r := &report{Tables: []table{tab}}
	var page, results strings.Builder
	r.page(&page)
	r.results(&results)
	for text, want := range map[string]string{
		page.String():    "**hasp table** (MariaDB), lock and unlock alone: 2 of 3 repetitions have no figures: nothing was acquired.",
		results.String(): "| hasp table (2 of 3 repetitions failed) | 100 |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// Every rival has a reason, and every reason a rival.
func TestRivalReasons(t *testing.T) {
	e := endpoint{URL: "redis://h:1?x=y", Addrs: []string{"h:1"}}
	var want []string
	for _, s := range stores {
		if storeTitles[s.name] == "" {
			t.Errorf("%s has no title", s.name)
		}
		for _, c := range s.contestants(e) {
			if c.role == peer || c.plain != "" {
				want = append(want, s.name+"/"+c.name)
			}
		}
	}
	slices.Sort(want)
	if have := slices.Sorted(maps.Keys(rivalReasons)); !slices.Equal(have, want) {
		t.Errorf("reasons are for %q, rivals are %q", have, want)
	}
}

func TestDuration(t *testing.T) {
	for us, want := range map[float64]string{0: "-", 2.34: "2.3 µs", 168: "168 µs", 1204: "1.20 ms", 151_200: "151 ms", 1_530_000: "1.5 s"} {
		if have := duration(us); have != want {
			t.Errorf("%v µs are %q, want %q", us, have, want)
		}
	}
}

// What is measured again takes the place of what it was, and what is new stands with its store.
func TestReplace(t *testing.T) {
	r := &report{Tables: []table{{Store: "a", Scenario: "S1"}, {Store: "a", Scenario: "S2"}, {Store: "b", Scenario: "S1"}}}
	r.replace([]table{{Store: "a", Scenario: "S1", Title: "new"}, {Store: "a", Scenario: "S3"}, {Store: "c", Scenario: "S1"}})
	var got []string
	for _, t := range r.Tables {
		got = append(got, t.Store+t.Scenario+t.Title)
	}
	if want := "aS1new aS2 aS3 bS1 cS1"; strings.Join(got, " ") != want || r.Tables[0].Again == "" || r.Tables[1].Again != "" {
		t.Errorf("%v, want %s, and the new ones dated: %+v", got, want, r.Tables)
	}
}

// Growth is told step by step, and in all from the first to the last.
func TestGrown(t *testing.T) {
	var fig figures
	fig.grown(1, figures{P50: 20, Commands: 2})
	fig.grown(1000, figures{P50: 50, Commands: 3})
	if fig.Growth != 2.5 || fig.P50 != 50 || fig.Commands != 3 || fig.Acquisitions != 1000 {
		t.Errorf("%+v", fig)
	}
	var page strings.Builder
	tab := table{Store: "s", Scenario: "queue", Outcomes: []outcome{{Who: "hasp", Role: ours, Reps: []figures{fig}}, {Who: "none", Role: ours, Reps: []figures{{Error: "why"}}}}}
	tab.compare()
	tab.markdown(&page)
	for _, want := range []string{"1: 20.0, 1000: 50.0 | 2.50 |", "| none | no figures: why |"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, &page)
		}
	}
}
