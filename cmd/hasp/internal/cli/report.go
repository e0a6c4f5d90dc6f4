package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/internal/exit"
)

// record is one line of --status-fd and --json, and of what hold prints.
type record struct {
	Event string    `json:"event"` // unreachable, waiting, acquired, asked, lost, term, done, dropped; held
	Time  time.Time `json:"time"`
	Name  string    `json:"name"`
	Store string    `json:"store,omitempty"`

	Token    uint64      `json:"token,omitempty"`
	Holder   string      `json:"holder,omitempty"`   // the id of our entry
	Deadline *time.Time  `json:"deadline,omitempty"` // absent where nothing expires
	Locks    []view.Lock `json:"locks,omitempty"`    // of acquired and held, if there are several or -l names one
	Waited   float64     `json:"waited_s,omitempty"`
	Held     float64     `json:"held_s,omitempty"`

	By    *hasp.Owner `json:"by,omitempty"`    // of asked
	Lines int         `json:"lines,omitempty"` // of dropped

	// Of term and done.
	Outcome     exit.Outcome `json:"outcome,omitempty"`
	Exit        *int         `json:"exit,omitempty"` // of hasp, or what it would be
	ChildExit   *int         `json:"child_exit,omitempty"`
	ChildSignal string       `json:"child_signal,omitempty"`
	Message     string       `json:"message,omitempty"`
}

// reporter reports what happens with one lock: for people as text on standard error, or as records
// with --json; and as records to --status-fd in any case.
//
// The library reports its events from many goroutines. What write needs is set before the first
// lock is asked for, when events begin; only the verb's goroutine uses began, acquired and taken.
//
// Both descriptors are outputs: nothing here waits for their readers.
type reporter struct {
	app            *app
	name, store    string
	json           bool
	quiet, verbose bool
	status         io.Writer // nil without --status-fd
	began          time.Time
	acquired       time.Time
	taken          string      // the name of the lock, of any of several
	holding        atomic.Bool // until the release begins
	choosing       bool        // it waits for one of several locks
	waits          atomic.Bool // the store has said that it waits
	queued         func()      // called whenever it waits; nil: no one asks
}

func (a *app) report(name string, sf *storeFlags, cf *commandFlags) (*reporter, error) {
	r := &reporter{app: a, name: name, json: sf.json, quiet: cf.quiet, verbose: cf.verbose, began: time.Now()}
	if cf.quiet && cf.verbose {
		return nil, exit.Usage("--quiet and --verbose exclude each other")
	}
	if sf.json {
		a.outputs[0].SetGap(r.gapRecord)
	}
	if cf.statusFD == -1 {
		return r, nil
	}
	status, err := a.openStatus(cf.statusFD)
	if err != nil {
		return nil, exit.Usage("--status-fd %d is not open for writing: %v; as in: hasp run --status-fd 3 NAME -- CMD 3>status", cf.statusFD, err)
	}
	if cf.statusFD == 2 { // which has an output already, and keeps the order of all lines
		r.status = a.stderr
		return r, status.Close()
	}
	r.status = a.output(status, r.gapRecord)
	return r, nil
}

// say is for people, in words. With --json it is silent: a program that reads standard error must
// find only records there, and everything that matters to it is a record.
func (r *reporter) say(format string, args ...any) {
	if !r.json && !r.quiet {
		r.app.tell(fmt.Sprintf(format, args...))
	}
}

// detail is say with --verbose only.
func (r *reporter) detail(format string, args ...any) {
	if r.verbose {
		r.say(format, args...)
	}
}

// write emits a record. A reader that has gone away is no reason to stop the command.
func (r *reporter) write(rec record) {
	if r.status == nil && !r.json {
		return
	}
	rec.Time, rec.Name, rec.Store = time.Now(), cmp.Or(rec.Name, r.name), r.store
	line, _ := view.JSON(rec) // plain data
	line = append(line, '\n')
	if r.status != nil {
		_, _ = r.status.Write(line)
	}
	if r.json {
		_, _ = r.app.stderr.Write(line)
	}
}

// gapRecord is called by an output, at any time: the store is not told.
func (r *reporter) gapRecord(lines int) string {
	line, _ := json.Marshal(record{Event: "dropped", Time: time.Now(), Name: r.name, Lines: lines}) // plain data
	return string(line) + "\n"
}

// describe is the record of an event with what is held.
func (r *reporter) describe(event string, g *commandLease) record {
	rec := record{Event: event, Time: time.Now(), Name: r.name, Store: r.store, Deadline: expiry(g)}
	if l := g.only(); l != nil {
		rec.Token, rec.Holder = l.Token(), l.ID()
	}
	if g.numbered || len(g.leases) > 1 {
		rec.Locks = g.locks()
	}
	return rec
}

func (r *reporter) held(g *commandLease) {
	r.acquired = time.Now()
	r.holding.Store(true)
	rec, token := r.describe("acquired", g), ""
	rec.Waited = r.acquired.Sub(r.began).Seconds()
	if l := g.only(); l != nil {
		rec.Name, r.taken, token = l.Name(), l.Name(), view.Token(l.Token())
	}
	r.write(rec)
	r.detail("acquired %q%s at %s after %s", cmp.Or(r.taken, r.name), token, r.store, view.Brief(r.acquired.Sub(r.began)))
}

// done reports the end, and returns the error by which Main exits.
func (r *reporter) done(end record, f *exit.Failure) error {
	r.conclude("done", end, f)
	if f == nil {
		return nil
	}
	// With --json the record has just been written; the status of a command needs no message; and
	// --quiet silences messages about the lock, not errors that a person must fix.
	f.Told = f.Told || r.json || f.Err == nil || r.quiet && (f.Outcome == exit.OutcomeBusy || f.Outcome == exit.OutcomeQuarantine || f.Outcome == exit.OutcomeUncertain || f.Outcome == exit.OutcomeLost)
	return f
}

// conclude writes the record of an end: of hasp (done), or of a term as leader (term).
func (r *reporter) conclude(event string, end record, f *exit.Failure) {
	code := exit.CodeOK
	if end.Outcome == "" {
		end.Outcome = exit.OutcomeOK
	}
	if f != nil {
		code, end.Outcome = f.Code, f.Outcome
		if f.Err != nil {
			end.Message = f.Error()
		}
	}
	end.Event, end.Exit, end.Name = event, &code, r.taken
	if r.acquired.IsZero() {
		end.Waited = time.Since(r.began).Seconds()
	} else {
		end.Waited, end.Held = r.acquired.Sub(r.began).Seconds(), time.Since(r.acquired).Seconds()
	}
	r.write(end)
}

// Observe reports the library's events. It is called from many goroutines; a line is one write.
func (r *reporter) Observe(e hasp.Event) {
	switch e.Kind {
	case hasp.EventWaiting:
		if r.queued != nil {
			r.queued()
		}
		if e.Err != nil {
			r.write(record{Event: "waiting", Message: e.Err.Error()})
			r.say("waiting for %q: %v", e.Name, exit.Within(e.Err))
			return
		}
		if r.waits.Swap(true) && r.choosing {
			return // it waits in another queue as well
		}
		r.write(record{Event: "waiting"})
		r.detail("waiting for %q", e.Name)
	case hasp.EventRenewed:
		if e.Err != nil {
			r.say("renewing %q failed, %s of trust left: %v", r.name, view.Brief(e.Remaining), exit.Within(e.Err))
		} else if r.holding.Load() { // the library renews places in the queue as well, and the session to the end
			r.detail("renewed %q", r.name)
		}
	case hasp.EventWarning:
		r.say("warning: %v", exit.Within(e.Err))
	case hasp.EventRequeued:
		r.say("the place in the queue of %q is gone, queueing again: %v", e.Name, exit.Within(e.Err))
	}
}
