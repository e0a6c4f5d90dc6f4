package hasp

import (
	"context"
	"errors"
	"time"
)

// Request is one acquisition, as middleware sees it: to be read and passed on, not to be
// changed. A lock that went by another name than its user thinks could neither be
// inspected nor released by an operator.
type Request struct {
	op              string // for messages: "lock", "try lock", "campaign for", ...
	name            string
	units, capacity int64
	owner           string
	value           []byte
	noWait          bool
	requestOptions
	began    time.Time      // set by acquire
	handOver *localHandOver // set by inHandOver
}

// Op says what is asked for: "lock", "read-lock", "acquire", "campaign for", and "try ..."
// of these.
func (r *Request) Op() string { return r.op }

// Name returns the lock's name.
func (r *Request) Name() string { return r.name }

// Units returns how much of the capacity is asked for: 1 for a reader, k for a
// semaphore's permits, all of it for a mutex, a writer and a candidate.
func (r *Request) Units() int64 { return r.units }

// Capacity returns the capacity of the name: that of its semaphore, or driver.Whole.
func (r *Request) Capacity() int64 { return r.capacity }

// NoWait reports whether this is a try.
func (r *Request) NoWait() bool { return r.noWait }

// Acquirer is the way of every lock, permit and term of a client to its lease.
type Acquirer interface {
	// Acquire returns a lease or an error, as [Mutex.Lock] does.
	Acquire(ctx context.Context, r *Request) (*Lease, error)
}

// AcquirerFunc makes an Acquirer of a function.
type AcquirerFunc func(ctx context.Context, r *Request) (*Lease, error)

// Acquire calls f.
func (f AcquirerFunc) Acquire(ctx context.Context, r *Request) (*Lease, error) { return f(ctx, r) }

// WithMiddleware has every acquisition of a client pass through policies of yours: rate
// limits, allow lists, rules for names, a tracing span. The first is the outermost. Each
// calls next once, with the Request it got and its context or one made from it, and
// returns what next returned; or it returns its own error instead, which the caller
// finds in a *LockError. What it adds to the context is not seen by the work under the lock.
//
// Middleware is called by many goroutines at once, after name, options and context have
// been checked. Taking a lock again with [Reentrant] sends no request and passes by.
func WithMiddleware(mw ...func(next Acquirer) Acquirer) Option {
	return func(c *config) error {
		c.middleware = append(c.middleware, mw...)
		return nil
	}
}

// chain wraps the way to the store in the client's middleware.
func (c *Client) chain() Acquirer {
	var next Acquirer = AcquirerFunc(c.enter)
	for i := len(c.cfg.middleware) - 1; i >= 0; i-- {
		next = c.cfg.middleware[i](next)
	}
	return next
}

// adopt gives a lease the values of the context that its user gave to Lock. What a middleware
// added was for the acquisition: a span that has ended by now, say.
func (l *Lease) adopt(ctx context.Context) {
	l.entry.mu.Lock()
	defer l.entry.mu.Unlock()
	l.parent = ctx
}

var errNoLease = errors.New("a middleware returned neither lease nor error")
