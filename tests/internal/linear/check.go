package linear

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/history"
)

// Options are the promises of the store under test, as those of package history.
type Options struct {
	Fencing bool          // every grant carries a token, in the order of grants
	FIFO    bool          // grants follow the order of entry
	Slack   time.Duration // see history.Options

	// StrictBusy requires that a hold explains each Busy answer. Leave it off for stores where a
	// try enters the queue, looks and leaves again: there two tries can refuse each other while the
	// lock is free.
	StrictBusy bool

	// Limit bounds Linearizable for each name; 0 means 20 s, less than 0 skips it.
	Limit time.Duration
}

// Check runs every check of package history that the options require, and Linearizable.
func Check(h history.History, o Options) []history.Violation {
	all := history.Check(h, history.Options{Fencing: o.Fencing, FIFO: o.FIFO, Slack: o.Slack})
	if o.Limit >= 0 {
		all = append(all, Linearizable(h, o.StrictBusy, o.Limit)...)
	}
	return all
}

// shown is how many violations Require prints; the file has the whole history.
const shown = 10

// Require fails the test if the history has no operation that was granted or if a check
// finds a violation. It then saves the history to a file that stays, and says where.
func Require(tb testing.TB, h history.History, o Options) {
	tb.Helper()
	grants := 0
	for i := range h {
		if h[i].Outcome == history.Granted {
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
func keep(h history.History) string {
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
