package drivertest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// env is the environment of a test: where to report, and the store.
type env struct {
	testing.TB
	h      Harness
	traits driver.Traits
	fake   bool   // inside a synctest bubble
	trial  *trial // nil if there are no trials: in fake time

	mu        sync.Mutex // guards what testify reports
	opened    []driver.Backend
	clientele []*client
	used      []string // names
	testified bool
}

// patience is how long a test waits for an event that must come. Only a broken driver takes that
// long; a loaded machine does not.
func (e *env) patience() time.Duration { return 20*e.h.TTL + 30*time.Second }

// limit is a promised bound as a test may demand it: exact in fake time, and with room
// for a machine that does other things in real time.
func (e *env) limit(promised time.Duration) time.Duration {
	if e.fake {
		return promised
	}
	return 2*promised + 5*time.Second
}

// violated is Errorf for faults that no expiry excuses: two clients that believe, a token that does
// not grow.
func (e *env) violated(format string, args ...any) {
	e.Helper()
	if e.trial != nil {
		e.trial.mu.Lock()
		e.trial.final = true
		e.trial.mu.Unlock()
	}
	e.Errorf(format, args...)
}

// ctx is for calls that must end by themselves.
func (e *env) ctx() context.Context {
	why := fmt.Errorf("the suite's patience (%s) is over with what was begun in %s", e.patience(), step())
	ctx, cancel := context.WithTimeoutCause(e.Context(), e.patience(), why)
	e.Cleanup(cancel)
	return ctx
}

// name returns an unused lock name.
func (e *env) name() string {
	name := "drivertest/" + e.Name() + "/" + strings.ToLower(rand.Text()[:12])
	e.mu.Lock()
	defer e.mu.Unlock()
	e.used = append(e.used, name)
	return name
}

// settle gives an event that must not happen the time to happen. It never fails a correct driver;
// in fake time it also catches every wrong one.
func (e *env) settle() {
	if e.fake {
		synctest.Wait()
		return
	}
	time.Sleep(20 * time.Millisecond)
}

// eventually waits until ok, for conditions that only the store can answer. If ok never comes, it
// reports what was seen last.
func (e *env) eventually(what string, ok func() bool, seen ...func() any) {
	e.Helper()
	if e.comes(ok) {
		return
	}
	for _, last := range seen {
		e.Errorf("last seen: %+v", last())
	}
	e.Fatalf("waited %s without success for: %s", e.patience(), what)
}

// comes asks until ok, and returns false when patience ends.
func (e *env) comes(ok func() bool) bool {
	pause := min(e.h.TTL/1000, 50*time.Millisecond)
	for end := time.Now().Add(e.patience()); !ok(); time.Sleep(pause) {
		if time.Now().After(end) {
			return false
		}
		pause = min(2*pause, e.h.TTL/50)
	}
	return true
}

// backend opens a connection that is closed at the test's end.
func (e *env) backend() driver.Backend {
	e.Helper()
	b := e.h.Open(e)
	e.Cleanup(func() {
		if err := b.Close(); err != nil {
			e.Errorf("close of a backend: %v", err)
		}
	})
	e.mu.Lock()
	e.opened = append(e.opened, b)
	e.mu.Unlock()
	e.Cleanup(e.testify)
	return b
}

// session opens a session of the driver itself, for tests below the core. It is not renewed, so
// such a test must end within a TTL or renew by itself. told receives the driver's reports by Gone.
func (e *env) session(b driver.Backend, told func(id string, err error)) driver.Session {
	e.Helper()
	if told == nil {
		told = func(string, error) {}
	}
	opened := time.Now()
	s, granted, err := b.Open(e.ctx(), driver.SessionOptions{TTL: e.calm(), Gone: told})
	if err != nil {
		e.Fatalf("open a session: %v", err)
	}
	if granted <= 0 {
		e.Fatalf("open granted %s", granted)
	}
	e.Cleanup(func() {
		if e.trial != nil && time.Since(opened) > granted { // it may have expired, without the driver's fault
			e.trial.starve()
		}
		if err := s.Close(context.Background()); err != nil && !errors.Is(err, driver.ErrGone) {
			e.Errorf("close of a session: %v", err)
		}
	})
	return s
}

// whole is the request of a mutex.
func (e *env) whole(name string) driver.Request { return e.request(name, driver.Whole, driver.Whole) }

func (e *env) request(name string, units, capacity int64) driver.Request {
	return driver.Request{
		Name: name, ID: "drivertest-" + strings.ToLower(rand.Text()[:16]), Units: units, Capacity: capacity,
		Owner: `{"program":"drivertest"}`, Since: time.Now(),
	}
}

// client is a Client of the root package on a separate connection, like another machine's. It
// records its events.
type client struct {
	*hasp.Client
	env *env
	tap *tap // nil unless made by tapped

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

func (e *env) client() *client { return e.clientOn(e.h.Open(e), nil, e.calm()) }

// clients makes n of them.
func (e *env) clients(n int) []*client {
	cs := make([]*client, n)
	for i := range cs {
		cs[i] = e.client()
	}
	return cs
}

// tapped is a client whose calls to the driver a test can count, falsify and withhold.
func (e *env) tapped() *client {
	p := newTap(e.h.Open(e))
	return e.clientOn(p, p, e.calm())
}

// mortal is a tapped client with the harness's TTL: for tests in which leases expire.
func (e *env) mortal() *client {
	p := newTap(e.h.Open(e))
	return e.clientOn(p, p, e.h.TTL)
}

// calm is a TTL for tests that are not about expiry: a machine that stops for a second must not
// fail them.
func (e *env) calm() time.Duration {
	if e.fake {
		return e.h.TTL
	}
	calm := 10 * time.Second
	if e.trial != nil {
		calm <<= e.trial.before
	}
	return max(e.h.TTL, calm)
}

func (e *env) clientOn(b driver.Backend, p *tap, ttl time.Duration) *client {
	e.Helper()
	c := &client{env: e, tap: p, more: make(chan struct{}), granted: map[grant]int64{}}
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
	e.opened, e.clientele = append(e.opened, b), append(e.clientele, c)
	e.mu.Unlock()
	e.Cleanup(e.testify) // before anything is closed
	return c
}

// Observe records an event, and whether a lease has expired that the test had not disturbed, or
// the answer to its release was lost without the test's doing: a connection that has been silent
// for seconds is given up by a machine that is busy for seconds. If the store may have forgotten
// an entry, the release is then rightly in doubt.
func (c *client) Observe(ev hasp.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var touched int64
	if c.tap != nil {
		touched = c.tap.touched.Load()
	}
	var lost *hasp.LostError
	ended := ev.Kind == hasp.EventLost || ev.Kind == hasp.EventReleased // some find out as they release
	expired := ended && errors.As(ev.Err, &lost) && lost.Reason == hasp.ReasonExpired
	doubted := ev.Kind == hasp.EventReleased && errors.Is(ev.Err, hasp.ErrUnknown) && c.env.traits.Forgets
	switch is := (grant{ev.Name, ev.Token}); {
	case ev.Kind == hasp.EventAcquired:
		c.granted[is] = touched
	case expired, doubted:
		if before, known := c.granted[is]; known && before == touched && c.env.trial != nil {
			c.env.trial.starve()
		}
	}
	c.events = append(c.events, ev)
	close(c.more)
	c.more = make(chan struct{})
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

// must acquires a free lock.
func (e *env) must(l *hasp.Lease, err error) *hasp.Lease {
	e.Helper()
	if err != nil {
		e.Fatalf("not acquired: %v", err)
	}
	return l
}

func (e *env) release(l *hasp.Lease) {
	e.Helper()
	if err := l.Release(e.ctx()); err != nil {
		e.Fatalf("not released: %v", err)
	}
}

// list reads a queue.
func (e *env) list(b driver.Backend, name string) []driver.Entry {
	e.Helper()
	entries, err := b.List(e.ctx(), name, 0)
	if err != nil {
		e.Fatalf("list %q: %v", name, err)
	}
	return entries
}

// empty waits until nothing is left under the name: cleaning up runs in the background (L4).
func (e *env) empty(b driver.Backend, name string) {
	e.Helper()
	var last []driver.Entry
	e.eventually(fmt.Sprintf("nothing left under %q", name), func() bool {
		last = e.list(b, name)
		return len(last) == 0
	}, func() any { return describe(last) })
}

// wantErr requires each of the targets in err's chain.
func (e *env) wantErr(what string, err error, targets ...error) {
	e.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			e.Errorf("%s: error %v, want one wrapping %q", what, err, target)
		}
	}
}
