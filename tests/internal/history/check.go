package history

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// Violation is an event that no correct lock allows.
type Violation struct {
	Check string      // the check that found it
	Name  string      // of the lock
	Text  string      // what is wrong
	Ops   []Operation // the operations involved
	zero  Time        // from which the text's times are counted
}

func (v Violation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %q: %s", v.Check, v.Name, v.Text)
	for i := range v.Ops {
		fmt.Fprintf(&b, "\n\t%s", v.Ops[i].describe(v.zero))
	}
	return b.String()
}

// checkRun collects the violations that one check finds in one lock's record.
type checkRun struct {
	check, name string
	zero        Time
	found       []Violation
}

func (c *checkRun) report(ops []*Operation, format string, args ...any) {
	v := Violation{Check: c.check, Name: c.name, Text: fmt.Sprintf(format, args...), zero: c.zero}
	for _, o := range ops {
		v.Ops = append(v.Ops, *o)
	}
	c.found = append(c.found, v)
}

// eachName runs one check over every lock of a history.
func eachName(h History, check string, f func(c *checkRun, ops []*Operation)) (all []Violation) {
	names, byName := h.byName()
	for _, name := range names {
		ops := byName[name]
		c := &checkRun{check: check, name: name, zero: start(ops)}
		f(c, ops)
		all = append(all, c.found...)
	}
	return all
}

// Options are the promises of the store under test. The zero value requires only exclusion and
// correct answers.
type Options struct {
	Fencing bool // every grant carries a token, in the order of grants
	FIFO    bool // grants follow the order of entry

	// Slack is how much earlier than its predecessor an operation may return before FIFO
	// counts it as overtaking. 0 is right for exclusive locks, whose holds do not overlap.
	// For readers and semaphores, several are granted at one moment and their answers race:
	// give what the scheduler may need.
	Slack time.Duration

	// StrictBusy requires that a hold explains each Busy answer. Leave it off for stores where a
	// try enters the queue, looks and leaves again: there two tries can refuse each other while the
	// lock is free.
	StrictBusy bool

	// Limit bounds Linearizable for each name; 0 means 20 s, less than 0 skips it.
	Limit time.Duration
}

// Check runs every check that the options require.
func Check(h History, o Options) []Violation {
	all := append(Exclusion(h), Beliefs(h)...)
	if o.Fencing {
		all = append(all, Tokens(h)...)
	} else {
		all = append(all, NoTokens(h)...)
	}
	if o.FIFO {
		for _, f := range Fair(h, o.Slack) {
			all = append(all, f.Overtakings...)
		}
	}
	if o.Limit >= 0 {
		all = append(all, Linearizable(h, o.StrictBusy, o.Limit)...)
	}
	return all
}

// shown is how many violations Require prints; the file has the whole history.
const shown = 10

// Require fails the test if the history has no operation that was granted or if a check
// finds a violation. It then saves the history to a file that stays, and says where.
func Require(tb testing.TB, h History, o Options) {
	tb.Helper()
	grants := 0
	for i := range h {
		if h[i].Outcome == Granted {
			grants++
		}
	}
	if grants == 0 {
		tb.Errorf("none of %d operations was granted: there is nothing to check", len(h))
	}
	found := Check(h, o)
	if len(found) == 0 {
		return
	}
	var b strings.Builder
	for _, v := range found[:min(len(found), shown)] {
		fmt.Fprintf(&b, "\n%s", v)
	}
	tb.Errorf("%d violations in %d operations; history saved to %s%s", len(found), len(h), keep(h), b.String())
}

// keep saves a history in the directory for temporary files and returns where, or why not.
func keep(h History) string {
	f, err := os.CreateTemp("", "hasp-history-*.jsonl")
	if err != nil {
		return "nowhere: " + err.Error()
	}
	if err := f.Close(); err != nil {
		return "nowhere: " + err.Error()
	}
	if err := h.Save(f.Name()); err != nil {
		return "nowhere: " + err.Error()
	}
	return f.Name()
}
