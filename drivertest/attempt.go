package drivertest

import (
	"context"

	"github.com/hasplock/hasp"
)

// attempt is an acquisition under way.
type attempt struct {
	env    *env
	began  string // where it began
	cancel context.CancelFunc
	done   chan struct{}
	got    *hasp.Lease
	err    error
}

// start acquires in the background. The lease is released at the end of the test at the latest, by
// closing the client.
func (e *env) start(lock func(context.Context) (*hasp.Lease, error)) *attempt {
	ctx, cancel := context.WithCancel(e.ctx())
	a := &attempt{env: e, began: step(), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.got, a.err = lock(ctx)
	}()
	// Cleanups run last in, first out: no acquisition still runs when the client closes.
	e.Cleanup(func() { cancel(); <-a.done })
	return a
}

// queue starts an acquisition and returns when its entry waits in the queue behind another. No
// other acquisition of the client may be starting.
func (c *client) queue(lock func(context.Context) (*hasp.Lease, error)) *attempt {
	c.env.Helper()
	c.mu.Lock()
	n := 1
	for _, ev := range c.events {
		if ev.Kind == hasp.EventWaiting {
			n++
		}
	}
	c.mu.Unlock()
	a := c.env.start(lock)
	// An acquisition that gets the lock at once has not waited: most likely a holder was lost
	// before, for lack of processor time, which the events show.
	c.awaitUnless(hasp.EventWaiting, n, a.done)
	return a
}

// lease waits for success.
func (a *attempt) lease() *hasp.Lease {
	a.env.Helper()
	<-a.done // returns: its context has an end
	if a.err != nil {
		a.env.Fatalf("what was begun in %s was not acquired: %v", a.began, a.err)
	}
	return a.got
}

// blocked fails the test if the attempt has come to an end, or does so as soon as it can.
func (a *attempt) blocked(why string) {
	a.env.Helper()
	a.env.settle()
	select {
	case <-a.done:
		a.env.Fatalf("%s: yet the call returned, lease %v, error %v", why, a.got != nil, a.err)
	default:
	}
}
