package drivertest

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/broken"
)

// recorder takes a test's verdict instead of the testing package.
type recorder struct {
	testing.TB
	mu     sync.Mutex
	failed bool
	words  []string
}

func (r *recorder) say(failed bool, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = r.failed || failed
	r.words = append(r.words, strings.TrimSpace(text))
}

func (r *recorder) Helper()                   {}
func (r *recorder) Log(a ...any)              { r.say(false, fmt.Sprintln(a...)) }
func (r *recorder) Logf(f string, a ...any)   { r.say(false, fmt.Sprintf(f, a...)) }
func (r *recorder) Error(a ...any)            { r.say(true, fmt.Sprintln(a...)) }
func (r *recorder) Errorf(f string, a ...any) { r.say(true, fmt.Sprintf(f, a...)) }
func (r *recorder) Fail()                     { r.say(true, "Fail") }
func (r *recorder) Fatal(a ...any)            { r.Error(a...); runtime.Goexit() }
func (r *recorder) Fatalf(f string, a ...any) { r.Errorf(f, a...); runtime.Goexit() }
func (r *recorder) FailNow()                  { r.Fail(); runtime.Goexit() }
func (r *recorder) Skip(a ...any)             { r.Log(a...); runtime.Goexit() }
func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// judge runs one test of the suite against a harness and returns what it said.
func judge(t *testing.T, x test, h Harness) *recorder {
	r := &recorder{}
	t.Run(x.name, func(t *testing.T) {
		x.within(t, h, func(t *testing.T) {
			r.TB = t
			if h.FakeTime {
				// Runs last, when the clients are closed: what a control has started ends by
				// then, and what the suite itself had forgotten would fail the bubble.
				t.Cleanup(func() { time.Sleep(time.Hour) })
			}
			done := make(chan struct{})
			go func() { // on a goroutine of its own, which Fatal may end
				defer close(done)
				x.test(r, h)
			}()
			<-done
		})
	})
	return r
}

// find returns the test called THEME/TEST.
func find(t *testing.T, name string) test {
	t.Helper()
	for _, th := range themes() {
		for _, x := range th.tests {
			if th.name+"/"+x.name == name {
				return x
			}
		}
	}
	t.Fatalf("the suite has no test %q", name)
	return test{}
}

// TestControls is the proof that the suite can fail: a check that cannot is a defect. The tests
// run on a broken driver as they run on any; only their verdict is turned round.
func TestControls(t *testing.T) {
	for _, c := range broken.Controls() {
		t.Run(c.Name, func(t *testing.T) {
			for _, name := range c.Seen {
				x := find(t, name)
				r := judge(t, x, harness(c.Flaw))
				if !r.failed {
					t.Errorf("%s did not notice; it said: %q", name, r.words)
				}
			}
		})
	}
}

// TestSound is the counter-check: without a flaw the same wrapping passes, so that what
// TestControls sees are the flaws.
func TestSound(t *testing.T) {
	for _, th := range themes() {
		for _, x := range th.tests {
			if x.processes {
				continue
			}
			if r := judge(t, x, harness(broken.Flaw{})); r.failed {
				t.Errorf("%s/%s: %q", th.name, x.name, r.words)
			}
		}
	}
}

// harness serves a flaw from a store of its own.
func harness(f broken.Flaw) Harness {
	store := f.Store()
	return Harness{
		Open:     func(testing.TB) driver.Backend { return store.Open() },
		Reopen:   func(testing.TB) { store.Reopen() },
		TTL:      time.Minute,
		FakeTime: true,
		Ops:      store.Reads,
	}
}
