package drivertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// A test begins again only if a lease had expired that it had not disturbed, and if there was no
// violation, which no expiry excuses; and it fails in the end if that happens each time.
func TestTrials(t *testing.T) {
	for _, c := range []struct {
		name   string
		body   func(r *trial, n int)
		runs   int
		failed bool
	}{
		{"passes", func(*trial, int) {}, 1, false},
		{"fails", func(r *trial, _ int) { r.Fatal("wrong") }, 1, true},
		{"slow once", func(r *trial, n int) {
			if n == 1 {
				r.tooSlow()
				r.Fatal("wrong")
			}
		}, 2, false},
		{"session ended once", func(r *trial, n int) {
			if n == 1 {
				(&env{TB: r, trial: r}).must(nil, fmt.Errorf("trial_test.go: %w: %w", hasp.ErrUnknown, driver.ErrGone))
			}
		}, 2, false},
		{"unanswered", func(r *trial, _ int) { (&env{TB: r, trial: r}).must(nil, hasp.ErrUnknown) }, 1, true},
		{"request without an answer once", func(r *trial, n int) {
			if n == 1 {
				(&env{TB: r, trial: r}).slowIfUnknown(errors.New("0 of 5 servers have answered"))
				r.Fatal("wrong")
			}
		}, 2, false},
		{"request with an answer", func(r *trial, _ int) {
			(&env{TB: r, trial: r}).slowIfUnknown(fmt.Errorf("full: %w", driver.ErrRefused))
			r.Fatal("trial_test.go: wrong")
		}, 1, true},
		{"request to the core without an answer once", func(r *trial, n int) {
			if n == 1 {
				r.Error((&env{TB: r, trial: r}).once(fmt.Errorf("publish: %w", context.DeadlineExceeded)))
			}
		}, 2, false},
		{"request that the core has answered", func(r *trial, _ int) {
			r.Error("trial_test.go: ", (&env{TB: r, trial: r}).once(fmt.Errorf("publish: %w", hasp.ErrNotHeld)))
		}, 1, true},
		{"a child's release had no answer once", func(r *trial, n int) { r.childSays(n == 1, hasp.ErrUnknown) }, 2, false},
		{"a child's release never has an answer", func(r *trial, _ int) { r.childSays(true, hasp.ErrUnknown) }, trials, true},
		{"a child's session ended once", func(r *trial, n int) {
			r.childSays(n == 1, fmt.Errorf("%w: %w", hasp.ErrUnknown, driver.ErrGone))
		}, 2, false},
		{"slow and right", func(r *trial, _ int) { r.tooSlow() }, 1, false},
		{"slow always", func(r *trial, _ int) { r.tooSlow(); r.Fatal("wrong") }, trials, true},
		{"violated", func(r *trial, _ int) { r.tooSlow(); (&env{TB: r, trial: r}).violated("two hold") }, 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, runs, open := newTrial(t), 0, 0
			inTrials(r, func(tr *trial) {
				runs++
				open++
				tr.Cleanup(func() { open-- })
				c.body(tr, runs)
			})
			if runs != c.runs || r.failed != c.failed || open != 0 {
				t.Errorf("%d runs, failed %t, %d without its cleanup", runs, r.failed, open)
			}
			// Once by the trial, and once by ours that it tells.
			if words := strings.Join(textsOf(r), "\n"); c.failed && strings.Count(words, "trial_test.go:") < 2 {
				t.Errorf("it does not say where: %q", words)
			}
		})
	}
}

// childSays is a child that was to go on, and reports an error.
func (r *trial) childSays(fails bool, err error) {
	if fails {
		p := &process{env: &env{TB: r, trial: r}, heard: make(chan report, 1)}
		p.heard <- report{Event: "done"}.with(err)
		p.quiet("done", "trial_test.go: it was to count for ever")
	}
}

// An acquisition that the store does not answer for a TTL begins a trial again, unless the test has
// had a hand in it; one that is refused does not.
func TestUnansweredAcquisitionStarves(t *testing.T) {
	for _, c := range []struct {
		err     error
		touched bool
		slow    bool
	}{
		{err: fmt.Errorf("campaign: %w: session ended: %w", hasp.ErrUnknown, driver.ErrGone), slow: true},
		{err: fmt.Errorf("lock: %w", hasp.ErrUnknown), slow: true},
		{err: fmt.Errorf("lock: %w", hasp.ErrUnknown), touched: true},
		{err: fmt.Errorf("lock: %w", driver.ErrRefused)},
		{err: fmt.Errorf("lock: %w", driver.ErrGone)},
	} {
		r := newTrial(t)
		a := &client{env: &env{TB: r, trial: r}, interceptor: &interceptor{}, more: make(chan struct{}), granted: map[grant]int64{}}
		if c.touched {
			a.interceptor.disturbances.Add(1)
		}
		a.Observe(hasp.Event{Kind: hasp.EventFailed, Name: "a", Err: c.err})
		if r.slow != c.slow {
			t.Errorf("%+v: slow %t", c, r.slow)
		}
	}
}

// A release that the store does not answer for a TTL begins a trial again, unless the test has had
// a hand in it.
func TestDoubtedReleaseStarves(t *testing.T) {
	for _, c := range []struct{ ended, touched, slow bool }{
		{slow: true}, {touched: true}, {ended: true, slow: true}, {ended: true, touched: true},
	} {
		r := newTrial(t)
		a := &client{env: &env{TB: r, trial: r}, interceptor: &interceptor{}, more: make(chan struct{}), granted: map[grant]int64{}}
		a.Observe(hasp.Event{Kind: hasp.EventAcquired, Name: "a"})
		if c.touched {
			a.interceptor.disturbances.Add(1)
		}
		err := fmt.Errorf("release: %w", hasp.ErrUnknown)
		if c.ended {
			err = fmt.Errorf("%w: %w", err, driver.ErrGone)
		}
		a.Observe(hasp.Event{Kind: hasp.EventReleased, Name: "a", Err: err})
		if r.slow != c.slow {
			t.Errorf("%+v: slow %t", c, r.slow)
		}
		a.Observe(hasp.Event{Kind: hasp.EventReleased, Name: "a", Err: &hasp.LostError{Reason: hasp.ReasonExpired}})
		if r.slow == c.touched {
			t.Errorf("%+v: slow %t, of a lease that had expired at its release", c, r.slow)
		}
	}
}
