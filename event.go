package hasp

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// EventKind says what happened.
type EventKind string

// The kinds of events.
const (
	EventWaiting  EventKind = "waiting"  // an acquisition did not get the lock at once; Place, if it is known; Err, if the store now refuses what it needs
	EventAcquired EventKind = "acquired" // Wait: how long it took
	EventFailed   EventKind = "failed"   // an acquisition ended without the lock; Err says why, ErrBusy if a try found it taken
	EventReleased EventKind = "released" // Hold: how long it was held; Err, if it was lost or the outcome is unknown
	EventLost     EventKind = "lost"     // Hold, and Err is the *LostError
	EventRequeued EventKind = "requeued" // a waiter's place went with its session; it queues again
	EventRenewed  EventKind = "renewed"  // of the session; Remaining: trust left; Took; Err, if it failed
	EventWarning  EventKind = "warning"  // of the client, once: Err says which of the store's settings breaks a promise
)

// Event is reported to an Observer.
type Event struct {
	Kind    EventKind
	Context context.Context // of the call that it is about, for its values; nil for events of the session
	Backend string
	Name    string // of the lock; empty for events of the session

	// What was asked for, where an acquisition ends (acquired, failed): Op is "lock",
	// "read-lock", "acquire", "campaign for" and so on, or "try ..." of these; Units of Capacity
	// are 1 for a reader, k for a semaphore's permits, all for a mutex, a writer and a candidate.
	Op              string
	Units, Capacity int64

	// Place says which of those who wait in the store it is (waiting): 1 is the next. It is 0 where
	// to know it would cost a request, as Inspect does. Those of one process that wait for the same
	// name are in the store one at a time.
	Place int

	Token     uint64
	Wait      time.Duration
	Hold      time.Duration
	Remaining time.Duration
	Took      time.Duration
	Err       error
}

// Observer is told what a Client does. Observe is called by the goroutine that does it,
// from many at once; it must be quick and must not call the Client.
type Observer interface {
	Observe(Event)
}

func (c *Client) observed() bool { return len(c.cfg.observe) > 0 }

func (c *Client) event(e Event) {
	if !c.observed() {
		return
	}
	e.Backend = c.backend.String()
	for _, o := range c.cfg.observe {
		o.Observe(e)
	}
}

// SlogObserver logs to a log/slog logger. A loss is an error; a failing renewal, acquisition or
// release is a warning; everything else is for debugging: locks are taken far too often
// to be logged each. The logger gets the context of the call that an event is about.
func SlogObserver(log *slog.Logger) Observer { return slogObserver{log} }

type slogObserver struct{ log *slog.Logger }

func (o slogObserver) Observe(e Event) {
	level := slog.LevelDebug
	switch {
	case e.Kind == EventLost:
		level = slog.LevelError
	case e.Kind == EventFailed && errors.Is(e.Err, ErrBusy):
	case e.Err != nil:
		level = slog.LevelWarn
	}
	ctx := e.Context
	if ctx == nil {
		ctx = context.Background()
	}
	if !o.log.Enabled(ctx, level) {
		return
	}
	var attrs []slog.Attr
	for _, a := range []slog.Attr{
		slog.String("store", e.Backend), slog.String("lock", e.Name), slog.Uint64("token", e.Token), slog.Int("place", e.Place),
		slog.Duration("wait", e.Wait), slog.Duration("hold", e.Hold), slog.Duration("margin", e.Remaining), slog.Duration("took", e.Took),
	} {
		if v := a.Value.Any(); v != "" && v != uint64(0) && v != int64(0) && v != time.Duration(0) {
			attrs = append(attrs, a)
		}
	}
	if e.Err != nil {
		attrs = append(attrs, slog.String("error", e.Err.Error()))
	}
	what := string(e.Kind)
	if e.Kind == EventReleased && errors.Is(e.Err, ErrLost) {
		what = "lost before its release"
	}
	o.log.LogAttrs(ctx, level, "hasp: "+what, attrs...)
}
