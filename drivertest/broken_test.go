package drivertest

import (
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/broken"
)

// runTest runs one test of the suite against a harness and returns its report.
func runTest(t *testing.T, x test, h Harness) *trial {
	var r *trial
	t.Run(x.name, func(t *testing.T) {
		x.within(t, h, func(t *testing.T) {
			r = newTrial(t)
			r.run(func(r *trial) { x.test(r, h) })
			if h.FakeTime {
				// The clients are closed: everything that a control has started ends by then, and a
				// goroutine that the suite itself forgot would fail the bubble.
				time.Sleep(time.Hour)
			}
		})
	})
	return r
}

// textsOf is the report that a trial has kept.
func textsOf(r *trial) (all []string) {
	for _, w := range r.words {
		all = append(all, w.text)
	}
	return all
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

// TestControls is the proof that the suite can fail: a check that cannot is a defect. The tests run
// on a broken driver as on any other; only their verdict is inverted.
func TestControls(t *testing.T) {
	for _, c := range broken.Controls() {
		t.Run(c.Name, func(t *testing.T) {
			for _, name := range c.Seen {
				x := find(t, name)
				r := runTest(t, x, harness(c.Flaw))
				if !r.failed {
					t.Errorf("%s did not notice; it said: %q", name, textsOf(r))
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
			if r := runTest(t, x, harness(broken.Flaw{})); r.failed {
				t.Errorf("%s/%s: %q", th.name, x.name, textsOf(r))
			}
		}
	}
}

// harness serves a flaw from a separate store.
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
