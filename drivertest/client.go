package drivertest

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// client is a Client of the root package on a separate connection, like another machine's. It
// records its events.
type client struct {
	*hasp.Client
	env         *env
	interceptor *interceptor // nil unless made by intercepted

	mu      sync.Mutex
	events  []hasp.Event
	more    chan struct{} // closed at the next event
	granted map[grant]int64
}

// grant is a grant of a client, with the number of times its connection had been disturbed by then.
type grant struct {
	name  string
	token uint64
}

func (e *env) client() *client { return e.clientOn(e.h.Open(e), nil, e.longTTL()) }

// clients makes n of them.
func (e *env) clients(n int) []*client {
	cs := make([]*client, n)
	for i := range cs {
		cs[i] = e.client()
	}
	return cs
}

// intercepted is a client whose calls to the driver a test can count, falsify and withhold.
func (e *env) intercepted() *client {
	p := newInterceptor(e.h.Open(e))
	return e.clientOn(p, p, e.longTTL())
}

// shortLived is an intercepted client with the harness's TTL: for tests in which leases expire.
func (e *env) shortLived() *client {
	p := newInterceptor(e.h.Open(e))
	return e.clientOn(p, p, e.h.TTL)
}

func (e *env) clientOn(b driver.Backend, p *interceptor, ttl time.Duration) *client {
	e.Helper()
	c := &client{env: e, interceptor: p, more: make(chan struct{}), granted: map[grant]int64{}}
	var err error
	c.Client, err = hasp.New(b, hasp.WithTTL(ttl), hasp.WithObserver(c))
	if err != nil {
		e.Fatalf("new client: %v", err)
	}
	e.Cleanup(func() {
		if p != nil {
			p.heal() // the test is not about a disorderly end
		}
		if err := c.Close(); err != nil {
			e.Errorf("close of a client: %v", err)
		}
	})
	e.mu.Lock()
	e.opened, e.made = append(e.opened, b), append(e.made, c)
	e.mu.Unlock()
	e.Cleanup(e.describeFailure) // before anything is closed
	return c
}

// Observe records an event, and whether a lease has expired that the test had not disturbed, or
// the answer to its release was lost without the test's doing: a connection that has been silent
// for seconds is given up by a machine that is busy for seconds, and a store that has not answered
// for a TTL leaves a release in doubt. So it does an acquisition by a client that the test has
// never disturbed.
func (c *client) Observe(ev hasp.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var touched int64
	if c.interceptor != nil {
		touched = c.interceptor.disturbances.Load()
	}
	var lost *hasp.LostError
	ended := ev.Kind == hasp.EventLost || ev.Kind == hasp.EventReleased // some find out as they release
	expired := ended && errors.As(ev.Err, &lost) && lost.Reason == hasp.ReasonExpired
	doubted := ev.Kind == hasp.EventReleased && errors.Is(ev.Err, hasp.ErrUnknown)
	unanswered := ev.Kind == hasp.EventFailed && errors.Is(ev.Err, hasp.ErrUnknown) && touched == 0
	switch is := (grant{ev.Name, ev.Token}); {
	case unanswered && c.env.trial != nil:
		c.env.trial.tooSlow()
	case ev.Kind == hasp.EventAcquired:
		c.granted[is] = touched
	case expired, doubted:
		if before, known := c.granted[is]; known && before == touched && c.env.trial != nil {
			c.env.trial.tooSlow()
		}
	}
	c.events = append(c.events, ev)
	close(c.more)
	c.more = make(chan struct{})
}

// disturbs notes that the test takes this lease: its loss is no sign of a busy machine.
func (c *client) disturbs(l *hasp.Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.granted, grant{l.Name(), l.Token()})
}

// saw returns the events of a kind so far.
func (c *client) saw(kind hasp.EventKind) (all []hasp.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ev := range c.events {
		if ev.Kind == kind {
			all = append(all, ev)
		}
	}
	return all
}

// await waits until there have been n events of the kind in all.
func (c *client) await(kind hasp.EventKind, n int) {
	c.env.Helper()
	c.awaitUnless(kind, n, nil)
}

// awaitUnless fails at once if something ends before that.
func (c *client) awaitUnless(kind hasp.EventKind, n int, over <-chan struct{}) {
	c.env.Helper()
	timeout := time.NewTimer(c.env.patience())
	defer timeout.Stop()
	for last := false; ; {
		c.mu.Lock()
		more, events := c.more, slices.Clone(c.events)
		c.mu.Unlock()
		seen := len(c.saw(kind))
		switch {
		case seen >= n:
			return
		case last:
			c.env.Fatalf("saw %d of %d events %q; all there were: %+v", seen, n, kind, events)
		}
		select {
		case <-more:
		case <-over:
			last = true // its last events before the end have been recorded
		case <-timeout.C:
			last = true
		}
	}
}
