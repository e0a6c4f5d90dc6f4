// Package metering is the common part of packages promhasp and otelhasp, without the terms of
// either library: the outcome of an event, and the length of a queue. It is one package so that a
// reason of a loss has the same name in both, and a new reason cannot be in one only. An adapter for
// another library of metrics uses it for the same names.
package metering

import (
	"context"
	"errors"
	"time"

	"github.com/hasplock/hasp"
)

// The results of Outcome for the events that one counter counts. The counters begin with all of
// these at 0: see both packages for why.
var (
	Acquisitions = []string{string(hasp.EventAcquired), "busy", string(hasp.EventFailed)}
	Releases     = []string{"confirmed", "unknown", "lost"}
	Renewals     = []string{"ok", "failed"}
	Losses       = []string{
		string(hasp.ReasonExpired), string(hasp.ReasonDenied), string(hasp.ReasonSessionGone), string(hasp.ReasonClosed),
		string(hasp.ReasonClockJump), string(hasp.ReasonOverdue), string(hasp.ReasonStalled),
	}
)

// Buckets are the upper bounds of the buckets of durations, in seconds: from the latency of a store
// in the next rack to the time that people wait.
var Buckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}

// Outcome returns the outcome of the event, as one of a few short words: never a name, never an
// error's text. It is "" for events that end nothing.
func Outcome(e hasp.Event) string {
	switch e.Kind {
	case hasp.EventAcquired, hasp.EventFailed:
		if errors.Is(e.Err, hasp.ErrBusy) {
			return "busy"
		}
		return string(e.Kind)
	case hasp.EventReleased:
		switch {
		case e.Err == nil:
			return "confirmed"
		case errors.Is(e.Err, hasp.ErrLost):
			return "lost"
		}
		return "unknown"
	case hasp.EventLost:
		var lost *hasp.LostError
		if errors.As(e.Err, &lost) {
			return string(lost.Reason)
		}
		return "unknown"
	case hasp.EventRenewed:
		if e.Err != nil {
			return "failed"
		}
		return "ok"
	}
	return ""
}

// Length is the length of a queue at one moment.
type Length struct {
	Holders, Waiters int
	Oldest           time.Duration // how long the first waiter has waited, by its own clock; 0 without one
}

// Lengths reads the queues of the names, one after the other, and reports for each its length, or
// why it could not be read. All of them together may take timeout (0: 5 s), so that a store that
// does not answer delays the collector once by that, and not once for each name.
func Lengths(ctx context.Context, c *hasp.Client, timeout time.Duration, names []string, tell func(name string, l Length, err error)) {
	if timeout <= 0 {
		timeout = 5 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for _, name := range names {
		q, err := c.Inspect(ctx, name)
		l := Length{Holders: len(q.Holders), Waiters: len(q.Waiters)}
		if l.Waiters > 0 && !q.Waiters[0].Since.IsZero() { // etcdctl lock, for example, does not say when it began
			l.Oldest = max(0, time.Since(q.Waiters[0].Since)) // its clock may be ahead of ours
		}
		tell(name, l, err)
	}
}
