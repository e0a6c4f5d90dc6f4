package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// result is the outcome of one pair.
type result struct {
	Store, Theirs, Version string
	Acquisitions           int
	Violations             int       // locks held by two, increments lost
	Lapses                 int       `json:",omitempty"` // steps that were played again: see lapse.go
	Problems               []problem `json:",omitempty"` // every failure, violations too
	Missing                string    `json:",omitempty"` // why it could not be run
	Control                bool      `json:",omitempty"` // broken on purpose
	Caught                 bool      `json:",omitempty"` // a control in which every step has failed that must

	// The medians of hand-overs, and the time from a SIGKILL to the waiter's grant.
	TheirsWakeOurs, OursWakeTheirs millis `json:",omitempty"`
	TheirsKilled, OursKilled       millis `json:",omitempty"`

	// Whether a holder whose lease was shorter than its work is told.
	TheirsOverrun, OursOverrun string `json:",omitempty"`
}

// problem is a step that failed.
type problem struct{ Step, Text string }

// millis is a time that is told in milliseconds.
type millis time.Duration

// MarshalJSON writes a number of milliseconds.
func (m millis) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "%.3f", time.Duration(m).Seconds()*1000), nil
}

func (m millis) String() string {
	switch ms := time.Duration(m).Seconds() * 1000; {
	case m == 0:
		return ""
	case ms < 10:
		return fmt.Sprintf("%.1f", ms)
	default:
		return fmt.Sprintf("%.0f", ms)
	}
}

// good reports that nothing is wrong with the pair: a control is good if it is caught.
func (r *result) good() bool {
	if r.Control {
		return r.Caught
	}
	return r.Missing == "" && len(r.Problems) == 0
}

// caught reports whether each of the steps has failed.
func (r *result) caught(steps []string) bool {
	failed := map[string]bool{}
	for _, p := range r.Problems {
		failed[p.Step] = true
	}
	for _, s := range steps {
		if !failed[s] {
			return false
		}
	}
	return true
}

const head = `| store, our options | theirs | acquisitions | violations | wake-up theirs→ours, ms p50 | ours→theirs, ms p50 | theirs killed: ours after, ms | ours killed: theirs after, ms | theirs overrun their lease | ours overrun |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | --- |
`

// table writes the results as Markdown.
func table(w io.Writer, results []*result) {
	fmt.Fprint(w, head)
	for _, r := range results {
		theirs := r.Theirs
		if r.Version != "" {
			theirs += " (" + r.Version + ")"
		}
		violations := fmt.Sprint(r.Violations)
		if r.Control {
			violations += ", not caught"
			if r.Caught {
				violations = fmt.Sprint(r.Violations) + ", caught"
			}
		}
		if r.Missing != "" {
			violations = "not run: " + strings.ReplaceAll(r.Missing, "\n", " ")
		}
		fmt.Fprintf(w, "| %s | %s | %d | %s | %s | %s | %s | %s | %s | %s |\n", r.Store, theirs, r.Acquisitions, violations,
			r.TheirsWakeOurs, r.OursWakeTheirs, r.TheirsKilled, r.OursKilled, r.TheirsOverrun, r.OursOverrun)
	}
}

// verdict decides the run's exit code. Where no person reads the table (demanding, as in CI), a
// pair that was not run fails it.
func verdict(results []*result, demanding bool) error {
	bad, missing := 0, 0
	for _, r := range results {
		if r.Missing != "" {
			missing++
		} else if !r.good() {
			bad++
		}
	}
	switch {
	case len(results) == 0:
		return errors.New("no pair has that name")
	case bad > 0 || missing > 0 && demanding:
		return fmt.Errorf("of %d pairs %d are bad and %d were not run: see above", len(results), bad, missing)
	}
	return nil
}

// complain writes what is wrong with a pair.
func complain(w io.Writer, r *result) {
	title := r.Store + " + " + r.Theirs
	if r.Lapses > 0 {
		fmt.Fprintf(w, "interop: %s: short leases lapsed before their time %d times\n", title, r.Lapses)
	}
	switch {
	case r.Missing != "":
		fmt.Fprintf(w, "interop: %s: could not be run: %s\n", title, r.Missing)
	case r.Control && !r.Caught:
		fmt.Fprintf(w, "interop: %s: the check has not caught this control; it found %v\n", title, r.Problems)
	case !r.Control:
		for _, p := range r.Problems {
			fmt.Fprintf(w, "interop: %s: %s: %s\n", title, p.Step, p.Text)
		}
	}
}
