package history

import (
	"fmt"
	"strings"
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

// CheckRun collects the violations that one check finds in one lock's record.
type CheckRun struct {
	check, name string
	zero        Time
	found       []Violation
}

// Report adds a violation by ops; format says in words what is wrong.
func (c *CheckRun) Report(ops []*Operation, format string, args ...any) {
	v := Violation{Check: c.check, Name: c.name, Text: fmt.Sprintf(format, args...), zero: c.zero}
	for _, o := range ops {
		v.Ops = append(v.Ops, *o)
	}
	c.found = append(c.found, v)
}

// EachName runs one check over every lock of a history, in order of names. ops are in order of
// Call.
func EachName(h History, check string, f func(c *CheckRun, ops []*Operation)) (all []Violation) {
	names, byName := h.byName()
	for _, name := range names {
		ops := byName[name]
		c := &CheckRun{check: check, name: name, zero: start(ops)}
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
	return all
}
