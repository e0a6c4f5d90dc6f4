// Package doctor is the form of what a driver's Diagnose finds: a table, of which each line is a
// question that was asked, and what to say if something is wrong. A store of which several products
// speak the protocol lists those that it must refuse, or that it was never run on (Product).
package doctor

import (
	"fmt"
	"slices"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Report collects findings.
type Report struct {
	Server string // whose these are, in front of each text; "" where there is one
	Found  []driver.Finding
}

// Add adds a finding.
func (r *Report) Add(level driver.Level, subject, text, cure string) {
	if r.Server != "" {
		text = r.Server + ": " + text
	}
	r.Found = append(r.Found, driver.Finding{Level: level, Subject: subject, Text: text, Cure: cure})
}

// When adds a finding if something is wrong: the first of a subject counts, as in a switch.
func (r *Report) When(wrong bool, level driver.Level, subject, text, cure string) {
	if wrong && !slices.ContainsFunc(r.Found, func(f driver.Finding) bool { return f.Subject == subject }) {
		r.Add(level, subject, text, cure)
	}
}

// Else says how it is where no line before has found anything wrong with a subject.
func (r *Report) Else(subject, text string) { r.When(true, driver.Info, subject, text, "") }

// clockTolerance is how far a server's clock may be off before it is a finding. Exclusion does not
// depend on it, only on its rate; tokens after a loss of data do.
const clockTolerance = 5 * time.Second

// Clock compares what a server has said to be the time with ours, from the asking until now.
func (r *Report) Clock(server, asked time.Time) {
	off := server.Sub(asked.Add(time.Since(asked) / 2)).Round(time.Millisecond)
	r.When(off.Abs() > clockTolerance, driver.Warn, "clock", fmt.Sprintf("the server's clock differs from ours by %s", off),
		"run NTP on both; never step the clock of a server that holds locks")
	r.Else("clock", fmt.Sprintf("differs from ours by %s", off))
}
