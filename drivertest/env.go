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

	mu        sync.Mutex // guards what describeFailure reports
	opened    []driver.Backend
	made      []*client
	used      []string // names
	described bool
}

// patience is how long a test waits for an event that must come. Only a broken driver takes that
// long; a loaded machine does not. A driver for which three tests have failed is broken, and gets
// less: a hundred such waits would end by go test's time-out, which tells nothing.
func (e *env) patience() time.Duration {
	if e.h.failed != nil && e.h.failed.Load() >= 3 {
		return 4*e.h.TTL + 5*time.Second
	}
	return 20*e.h.TTL + 30*time.Second
}

// prompt is how long the news of a change may take to those who wait for it or watch. A waiter that
// hears nothing asks when the holder's time would be over: that is no wake-up, and later.
func (e *env) prompt() time.Duration { return e.limit(e.h.TTL/2 + time.Second) }

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

// await receives what must come, as a call of a driver that must return. A driver that ignores its
// context fails here, and not by the time limit of go test.
func await[T any](e *env, what string, from <-chan T) (v T) {
	e.Helper()
	select {
	case v = <-from:
	case <-e.ctx().Done():
		e.Fatalf("waited %s without success for: %s", e.patience(), what)
	}
	return v
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
	e.Cleanup(e.describeFailure)
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
	s, granted := e.open(b, driver.SessionOptions{TTL: e.longTTL(), Gone: told})
	e.Cleanup(func() {
		e.slowIfOver(opened, granted)
		if err := s.Close(context.Background()); err != nil && !errors.Is(err, driver.ErrGone) {
			e.Errorf("close of a session: %v", err)
		}
	})
	return s
}

// slowIfOver begins the trial again if a session that is not renewed may have expired, without the
// driver's fault. A store with one TTL for all grants less than the test asked for.
func (e *env) slowIfOver(since time.Time, granted time.Duration) {
	if e.trial != nil && time.Since(since) > granted {
		e.trial.tooSlow()
	}
}

// open opens a session that the test itself closes.
func (e *env) open(b driver.Backend, o driver.SessionOptions) (s driver.Session, granted time.Duration) {
	e.Helper()
	s, granted, err := b.Open(e.ctx(), o)
	e.slowIfUnknown(err)
	if err != nil || granted <= 0 {
		e.Fatalf("open a session: %s granted, %v", granted, err)
	}
	return s, granted
}

// whole is the request of a mutex.
func (e *env) whole(name string) driver.Request { return e.request(name, driver.Whole, driver.Whole) }

func (e *env) request(name string, units, capacity int64) driver.Request {
	return driver.Request{
		Name: name, ID: "drivertest-" + strings.ToLower(rand.Text()[:16]), Units: units, Capacity: capacity,
		Owner: `{"program":"drivertest"}`, Since: time.Now(),
	}
}

// longTTL is a TTL for tests that are not about expiry: a machine that stops for a second must not
// fail them.
func (e *env) longTTL() time.Duration {
	if e.fake {
		return e.h.TTL
	}
	ttl := 10 * time.Second
	if e.trial != nil {
		ttl <<= e.trial.before
	}
	return max(e.h.TTL, ttl)
}

// must acquires a free lock. On a busy machine a client with a short TTL may lose its session
// meanwhile, also after the test has made it lose one.
func (e *env) must(l *hasp.Lease, err error) *hasp.Lease {
	e.Helper()
	if err != nil {
		if sessionEnded(err) && e.trial != nil {
			e.trial.tooSlow()
		}
		e.Fatalf("not acquired: %v", err)
	}
	return l
}

// sessionEnded reports whether a call has no known outcome because its session has ended under it.
func sessionEnded(err error) bool {
	return errors.Is(err, hasp.ErrUnknown) && errors.Is(err, driver.ErrGone)
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
	return e.first(b, name, 0)
}

// first reads the first entries of a queue, limit at most; all of them if that is 0.
func (e *env) first(b driver.Backend, name string, limit int) []driver.Entry {
	e.Helper()
	entries, err := b.List(e.ctx(), name, limit)
	e.slowIfUnknown(err)
	if err != nil {
		e.Fatalf("list %q with the limit %d: %v", name, limit, err)
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
		if slices.Contains(definite, target) {
			e.slowIfUnknown(err)
		}
		if !errors.Is(err, target) {
			e.Errorf("%s: error %v, want one wrapping %q", what, err, target)
		}
	}
}
