package drivertest

import (
	"context"
	"slices"
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

// TestCASControls: the same for stores that package caslock is made for, and each is noticed long
// before a wait without limit would end.
func TestCASControls(t *testing.T) {
	for _, c := range append(broken.CASControls(), broken.CASControl{Name: "no flaw"}) {
		t.Run(c.Name, func(t *testing.T) {
			for _, name := range c.Seen {
				r, took := noticed(t, name, c.Flaw)
				late := took > 8*casTTL && name != "Retention/Sweep" // which lasts as long on any store
				if t.Logf("%s: %s", name, took); !r.failed || late {
					t.Errorf("%s did not notice, or only after %s; it said: %q", name, took, textsOf(r))
				}
			}
			if c.Seen != nil {
				return
			}
			for _, th := range themes() {
				for _, x := range th.tests {
					if x.processes {
						continue
					}
					if r := runTest(t, x, casHarness(c.Flaw)); r.failed {
						t.Errorf("%s/%s: %q", th.name, x.name, textsOf(r))
					}
				}
			}
		})
	}
}

// noticed runs a test on a flawed store until it fails, ten times at most, and returns how much
// fake time the last run took. What some flaws do depends on which of two goroutines comes first.
func noticed(t *testing.T, name string, f broken.CASFlaw) (r *trial, took time.Duration) {
	t.Helper()
	for range 10 {
		h, began := casHarness(f), time.Time{}
		open := h.Open
		h.Open = func(t testing.TB) driver.Backend {
			if began.IsZero() { // fake time has begun
				began = time.Now()
				t.Cleanup(func() { took = time.Since(began) })
			}
			return open(t)
		}
		if r = runTest(t, find(t, name), h); r.failed {
			break
		}
	}
	return r, took
}

const casTTL = time.Minute

func casHarness(f broken.CASFlaw) Harness {
	const retention = 5 * casTTL
	store := f.Store(retention)
	return Harness{
		Open: func(testing.TB) driver.Backend { return store.Open() },
		TTL:  casTTL, FakeTime: true, Retention: retention,
		Gated: func(_ testing.TB, gate func(context.Context, string) error) (driver.Backend, func() int64) {
			return store.Gated(gate)
		},
	}
}

// TestCallsCounted: without Harness.Counted the calls of the driver are what a client costs.
func TestCallsCounted(t *testing.T) {
	noticed := 0
	for _, c := range broken.Controls() {
		h := harness(c.Flaw)
		if h.Counted = nil; slices.Contains(c.Seen, "Cost/Idle") && runTest(t, find(t, "Cost/Idle"), h).failed {
			noticed++
		}
	}
	if noticed != 2 { // whose calls are many: what the other two ask inside of a call is not seen
		t.Errorf("%d flaws were noticed, want 2", noticed)
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
		Ops:      store.Requests,
		Counted:  func(testing.TB) (driver.Backend, func() int64) { return store.Counted() },
	}
}
