package programs

import (
	"context"
	"errors"
	"time"
)

// plan says how one call is disturbed.
type plan struct {
	fail, lose            bool
	requestLate, lateness time.Duration
	cut                   time.Duration // the driver's context ends after it; 0: with the caller's
}

var (
	errRequest = errors.New("programs: the request was not sent")
	errAnswer  = errors.New("programs: the answer was lost")
)

// pass waits while nothing passes.
func (c *conn) pass(ctx context.Context) error {
	for {
		c.mu.Lock()
		broken := c.broken
		c.mu.Unlock()
		if broken == nil {
			return ctx.Err()
		}
		select {
		case <-broken:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *conn) next() (p plan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.plans) > 0 {
		p, c.plans = c.plans[0], c.plans[1:]
	}
	return p
}

// through makes one call. A late request reaches the store although its caller has given up by
// then; only requests that may be repeated are late.
func through[T any](ctx context.Context, c *conn, repeatable bool, call func(context.Context) (T, error)) (T, error) {
	var nothing T
	if err := c.pass(ctx); err != nil {
		return nothing, err
	}
	p := c.next()
	if p.fail {
		return nothing, errRequest
	}
	answer := call
	if p.requestLate > 0 && repeatable {
		answer = late(c, call, p.requestLate)
	}
	v, err := bounded(ctx, p.cut, answer)
	if p.lose {
		return nothing, errAnswer
	}
	if p.lateness > 0 {
		pause(ctx, p.lateness)
	}
	if lost := c.pass(ctx); lost != nil {
		return nothing, lost
	}
	return v, err
}

// bounded makes a call whose context ends after a time, as that of a caller may at any moment: also
// in the middle of a request, or between its answer and the next one that the driver needs.
func bounded[T any](ctx context.Context, after time.Duration, call func(context.Context) (T, error)) (T, error) {
	if after == 0 {
		return call(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, after)
	defer cancel()
	return call(ctx)
}

func late[T any](c *conn, call func(context.Context) (T, error), by time.Duration) func(context.Context) (T, error) {
	type result struct {
		v   T
		err error
	}
	return func(ctx context.Context) (v T, err error) {
		done := make(chan result, 1)
		c.underWay.Go(func() {
			time.Sleep(by)
			ctx, cancel := detached(ctx)
			defer cancel()
			v, err := call(ctx)
			done <- result{v, err}
		})
		select {
		case r := <-done:
			return r.v, r.err
		case <-ctx.Done():
			return v, ctx.Err()
		}
	}
}

// detached is a context for calls that are no longer waited for. It ends: the network of a killed
// client never answers again.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
