package drivertest

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// The report of a failed test beside its error: the step in which it waited, the last events of its
// clients, and the entries of its names in the store. Most failures are waits without an end, and
// their errors say only that.

// step is where in the suite its caller's caller was called: the nearest function that is not
// a helper of env.go and its like, and the test.
func step() string {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	near, test := "", ""
	for {
		f, more := frames.Next()
		_, name, suite := strings.Cut(f.Function, "/drivertest.")
		if file := filepath.Base(f.File); suite && file != "env.go" && file != "client.go" && file != "drivertest.go" {
			if at := fmt.Sprintf("%s (%s:%d)", name, file, f.Line); near == "" {
				near = at
			} else if strings.HasPrefix(name, "test") {
				test = at
			}
		}
		if !more {
			break
		}
	}
	if test == "" {
		return near
	}
	return near + ", called by " + test
}

// describeFailure logs what a failed test's clients and names look like. The store may be the
// broken part, so it gets little time to answer.
func (e *env) describeFailure() {
	if !e.Failed() {
		return
	}
	e.mu.Lock()
	said, clients, opened, names := e.described, e.made, e.opened, e.used
	e.described = true
	e.mu.Unlock()
	if said {
		return
	}
	for i, c := range clients[:min(len(clients), 6)] {
		e.Logf("client %d of %d saw last: %s", i+1, len(clients), c.lastEvents(5))
	}
	for _, name := range names[:min(len(names), 4)] {
		e.Logf("at the end the store has under %q: %s", name, entriesFrom(opened, name))
	}
}

func (c *client) lastEvents(n int) string {
	c.mu.Lock()
	events := slices.DeleteFunc(slices.Clone(c.events), func(ev hasp.Event) bool { return ev.Kind == hasp.EventRenewed && ev.Err == nil })
	c.mu.Unlock()
	if len(events) == 0 {
		return "nothing"
	}
	var b strings.Builder
	for _, ev := range events[max(0, len(events)-n):] {
		fmt.Fprintf(&b, "%s %q (token %d, %v); ", ev.Kind, ev.Name, ev.Token, ev.Err)
	}
	return strings.TrimSuffix(b.String(), "; ")
}

// describe shows a queue without what only its owners need to know.
func describe(entries []driver.Entry) string {
	if len(entries) == 0 {
		return "no entries"
	}
	var b strings.Builder
	for _, en := range entries {
		fmt.Fprintf(&b, "%s (%d of %d, seq %d, session %q); ", en.ID, en.Units, en.Capacity, en.Seq, en.Session)
	}
	return strings.TrimSuffix(b.String(), "; ")
}

// entriesFrom asks the backends until one answers.
func entriesFrom(backends []driver.Backend, name string) string {
	err := fmt.Errorf("no backend to ask")
	for _, b := range backends[:min(len(backends), 3)] {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		var entries []driver.Entry
		entries, err = b.List(ctx, name, 20)
		cancel()
		if err == nil {
			return describe(entries)
		}
	}
	return err.Error()
}
