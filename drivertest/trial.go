package drivertest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// trials is how often a test may begin again, the first time included.
const trials = 3

// trial is one run of a test. On a machine that did not let the process or the store run for most
// of a TTL a lease expires, rightly, and no test can go on after that; nor after a release whose
// answer was lost with a connection that was silent for too long; nor if the driver could not say
// what was done. So the output of such a trial is kept until it ends, and if it has failed after
// such an event that the test had not disturbed, another one begins. A violation always counts: a
// lease that expires is no excuse for two holders.
type trial struct {
	testing.TB
	ctx    context.Context
	cancel context.CancelFunc
	before int // how many trials there have been

	mu       sync.Mutex
	words    []word
	failed   bool
	skipped  bool
	slow     bool // a lease has expired, or a request has no known outcome, that the test had not disturbed
	final    bool
	cleanups []func()
}

type word struct {
	text  string
	fails bool
}

// inTrials runs body until it has passed, or has failed for another reason than an expired lease.
func inTrials(t testing.TB, body func(*trial)) {
	for n := 1; ; n++ {
		r := newTrial(t)
		r.before = n - 1
		r.run(body)
		if !r.failed || !r.slow || r.final || n == trials {
			r.tell(t)
			return
		}
		t.Logf("trial %d of %d failed when a lease had expired, or a request had no answer, that the test had not disturbed: this machine is busy, or the driver does not renew", n, trials)
		for _, w := range r.words {
			t.Log(w.text)
		}
	}
}

func newTrial(t testing.TB) *trial {
	r := &trial{TB: t}
	r.ctx, r.cancel = context.WithCancel(t.Context())
	return r
}

// run ends when the body has ended, by its return or by Fatal, and its cleanups have.
func (r *trial) run(body func(*trial)) {
	apart := func(f func()) {
		done := make(chan struct{})
		go func() { // a separate goroutine, which Fatal may end
			defer close(done)
			f()
		}()
		<-done
	}
	apart(func() { body(r) })
	r.cancel() // before the cleanups, as package testing does
	for {
		r.mu.Lock()
		if len(r.cleanups) == 0 {
			r.mu.Unlock()
			return
		}
		last := r.cleanups[len(r.cleanups)-1]
		r.cleanups = r.cleanups[:len(r.cleanups)-1]
		r.mu.Unlock()
		apart(last)
	}
}

// tell passes the kept output to package testing.
func (r *trial) tell(t testing.TB) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.words {
		if w.fails {
			t.Error(w.text)
		} else {
			t.Log(w.text)
		}
	}
	if r.failed && !t.Failed() {
		t.Fail()
	}
	if r.skipped {
		t.SkipNow()
	}
}

// tooSlow records that a lease has expired, or a request has no known outcome, that the test had
// not disturbed.
func (r *trial) tooSlow() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.slow = true
}

// slowIfUnknown begins the trial again if a request of the driver's has no answer that says what
// was done: the core would repeat it, and a busy machine is late for a driver that waits for 200
// ms, as Redlock's does for a server.
func (e *env) slowIfUnknown(err error) {
	said := func(known error) bool { return errors.Is(err, known) }
	if err != nil && e.trial != nil && !slices.ContainsFunc(definite, said) && !slices.ContainsFunc(definiteOfCore, said) {
		e.trial.tooSlow()
	}
}

// once passes on the error of a request that neither the core nor the test repeats.
func (e *env) once(err error) error {
	e.slowIfUnknown(err)
	return err
}

// definite are the errors that say what was done.
var definite = []error{
	driver.ErrGone, driver.ErrForgotten, driver.ErrMismatch, driver.ErrUnsupported,
	driver.ErrRefused, driver.ErrInvalid, driver.ErrReadOnly, driver.ErrClosed,
}

// definiteOfCore are those that the core adds.
var definiteOfCore = []error{hasp.ErrLost, hasp.ErrNotHeld, hasp.ErrNotFound}

func (r *trial) say(fails bool, text string) {
	text = caller() + strings.TrimSpace(text)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = r.failed || fails
	r.words = append(r.words, word{text, fails})
}

// caller is the test's line that reports, since package testing would name a line of this file.
func caller() string {
	var pcs [16]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	for {
		f, more := frames.Next()
		if file := filepath.Base(f.File); file != "trial.go" && file != "env.go" && file != "client.go" {
			return fmt.Sprintf("%s:%d: ", file, f.Line)
		}
		if !more {
			return ""
		}
	}
}

func (r *trial) Helper()                   {}
func (r *trial) Context() context.Context  { return r.ctx }
func (r *trial) Log(a ...any)              { r.say(false, fmt.Sprintln(a...)) }
func (r *trial) Logf(f string, a ...any)   { r.say(false, fmt.Sprintf(f, a...)) }
func (r *trial) Error(a ...any)            { r.say(true, fmt.Sprintln(a...)) }
func (r *trial) Errorf(f string, a ...any) { r.say(true, fmt.Sprintf(f, a...)) }
func (r *trial) Fatal(a ...any)            { r.say(true, fmt.Sprintln(a...)); runtime.Goexit() }
func (r *trial) Fatalf(f string, a ...any) { r.say(true, fmt.Sprintf(f, a...)); runtime.Goexit() }
func (r *trial) Skip(a ...any)             { r.skip(fmt.Sprintln(a...)) }
func (r *trial) Skipf(f string, a ...any)  { r.skip(fmt.Sprintf(f, a...)) }
func (r *trial) FailNow()                  { r.Fail(); runtime.Goexit() }

func (r *trial) Fail() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
}

// skip keeps the reason as it is: a run counts reasons, wherever they come from.
func (r *trial) skip(why string) {
	r.mu.Lock()
	r.words = append(r.words, word{text: strings.TrimSpace(why)})
	r.mu.Unlock()
	r.SkipNow()
}

func (r *trial) SkipNow() {
	r.mu.Lock()
	r.skipped = true
	r.mu.Unlock()
	runtime.Goexit()
}

func (r *trial) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *trial) Skipped() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.skipped
}

func (r *trial) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}
