package main

import (
	"fmt"
	"io"
	"strings"
)

const resultsPreface = `# Results of the last full run

` + "`make bench`" + ` writes this file: do not edit it. It is for developers of hasp; the page for users is
docs/PERFORMANCE.md. %s, on %s, %d repetitions.

Trust ratios and counts of one run, not absolute times, nor ratios of runs on different days. The floor is the least that a lock on the same
store can cost, in the same repetition, without queue, renewal or token. Where there is contention,
a floor that cannot wait is told its turn inside one process and then releases and acquires, one
after the other; a hand-over inside the store can beat that. A ratio is the median over the
repetitions, with the least and the greatest; where these are further than %.0f %% from it, none is
given. Databases sync each commit to the disk of this machine. rueidislock is missing: its module was
not available here. ` + "`make bench STORE=redis SCENARIO=S6`" + ` runs a part.

`

// results writes the developers' file: all tables.
func (r *report) results(w io.Writer) {
	fmt.Fprintf(w, resultsPreface, r.When, r.Machine, r.Reps, 100*disagreement)
	last := ""
	for _, t := range r.Tables {
		if t.Store != last {
			fmt.Fprintf(w, "## %s\n\n", t.Store)
			last = t.Store
		}
		t.markdown(w)
	}
}

// column is one figure of a table, left out if no contestant has it.
type column struct {
	title string
	text  func(o outcome) string
}

func figure(title string, of func(f figures) float64) column {
	return column{title, func(o outcome) string {
		if v := of(o.Median); v > 0 {
			return number(v)
		}
		return ""
	}}
}

func (t *table) columns() []column {
	unit := t.Unit
	return []column{
		figure("p50 µs", func(f figures) float64 { return f.P50 }),
		figure("p95 µs", func(f figures) float64 { return f.P95 }),
		figure("p99 µs", func(f figures) float64 { return f.P99 }),
		figure("per s", func(f figures) float64 { return f.Rate }),
		figure(unit, func(f figures) float64 { return f.Commands }),
		figure("client CPU µs", func(f figures) float64 { return f.CPU }),
		figure("Jain", func(f figures) float64 { return f.Jain }),
		{"least/most", func(o outcome) string {
			if o.Median.Most == 0 {
				return ""
			}
			return fmt.Sprintf("%d/%d", o.Median.Least, o.Median.Most)
		}},
		{"out of order", func(o outcome) string {
			if o.Median.Most == 0 {
				return ""
			}
			return fmt.Sprint(o.Median.Inversions)
		}},
		figure("heap B each", func(f figures) float64 { return f.Heap }),
		figure("goroutines each", func(f figures) float64 { return f.Goroutines }),
		figure(unit+" per s", func(f figures) float64 { return f.PerSecond }),
		figure("CPU s/30 s", func(f figures) float64 { return f.CPU30 }),
		figure("lost", func(f figures) float64 { return float64(f.Lost) }),
		{"p50 µs with so many", func(o outcome) string { return stepsText(o.Median.Steps) }},
		figure("last x first", func(f figures) float64 { return f.Growth }),
		{"x floor", func(o outcome) string { return ratioText(o.ToFloor, o.Floor) }},
		{"x best peer", func(o outcome) string { return ratioText(o.ToPeer, o.Peer) }},
	}
}

func stepsText(steps []step) string {
	var all []string
	for _, s := range steps {
		all = append(all, fmt.Sprintf("%d: %s", s.N, number(s.P50)))
	}
	return strings.Join(all, ", ")
}

func ratioText(s *span, of string) string {
	switch {
	case s == nil:
		return ""
	case !s.agrees():
		return "repetitions disagree"
	}
	return fmt.Sprintf("**%s** (%s–%s) of %s", number(s.Median), number(s.Min), number(s.Max), of)
}

func (t *table) markdown(w io.Writer) {
	var shown []column
	for _, c := range t.columns() {
		for _, o := range t.Outcomes {
			if c.text(o) != "" {
				shown = append(shown, c)
				break
			}
		}
	}
	if len(shown) == 0 {
		shown = t.columns()[:1] // which says why there are none
	}
	fmt.Fprintf(w, "### %s: %s\n\n", t.Scenario, t.Title)
	if t.Again != "" {
		fmt.Fprintf(w, "Measured again on %s, after the rest.\n\n", t.Again)
	}
	fmt.Fprint(w, "| |")
	for _, c := range shown {
		fmt.Fprintf(w, " %s |", c.title)
	}
	fmt.Fprintf(w, "\n| --- |%s\n", strings.Repeat(" --- |", len(shown)))
	for _, o := range t.Outcomes {
		who := o.Who
		if failed, _ := o.failed(); failed > 0 && failed < len(o.Reps) {
			who += fmt.Sprintf(" (%d of %d repetitions failed)", failed, len(o.Reps))
		}
		fmt.Fprintf(w, "| %s |", who)
		for i, c := range shown {
			if i == 0 && o.Median.Error != "" {
				fmt.Fprintf(w, " no figures: %s |", strings.ReplaceAll(o.Median.Error, "|", "/"))
				continue
			}
			fmt.Fprintf(w, " %s |", c.text(o))
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w)
}

// find returns a contestant's outcome, if it has figures.
func find(tables []table, store, scenario, who string) (outcome, bool) {
	for _, tab := range tables {
		if tab.Store != store || tab.Scenario != scenario {
			continue
		}
		for _, o := range tab.Outcomes {
			if o.Who == who && len(o.Reps) > 0 && o.Median.Error == "" {
				return o, true
			}
		}
	}
	return outcome{}, false
}

// number prints three digits.
func number(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 1e6:
		return fmt.Sprintf("%.2fM", v/1e6)
	case v >= 10_000:
		return fmt.Sprintf("%.1fk", v/1e3)
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
