//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"fmt"
	"time"

	"github.com/hasplock/hasp/driver"
)

// backend is a directory. The store in it is attached as long as it is used: by the
// backend itself, its sessions, a call under way. One that has failed (the directory was
// replaced) is let go, and the next use attaches what is there then.
type backend struct {
	path    string
	options Options

	mutex  chan struct{} // full while the fields below are in use; attaching may wait
	store  *store
	closed bool
}

func open(ctx context.Context, path string, o *Options) (driver.Backend, error) {
	b := &backend{path: path, options: *o, mutex: make(chan struct{}, 1)}
	s, err := b.use(ctx)
	if err != nil {
		return nil, refuse(err)
	}
	s.leave()
	return b, nil
}

// use returns the store; leave must follow.
func (b *backend) use(ctx context.Context) (*store, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case b.mutex <- struct{}{}:
		defer func() { <-b.mutex }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if b.closed {
		return nil, driver.ErrClosed
	}
	if b.store != nil && b.store.failure() != nil {
		b.store.leave()
		b.store = nil
	}
	if b.store == nil {
		s, err := attach(ctx, b.path, &b.options)
		if err != nil {
			return nil, err
		}
		s.uses.Add(1)
		b.store = s
	}
	b.store.uses.Add(1)
	return b.store, nil
}

// Close lets the store go.
func (b *backend) Close() error {
	b.mutex <- struct{}{}
	defer func() { <-b.mutex }()
	if b.store != nil {
		b.store.leave()
	}
	b.store, b.closed = nil, true
	return nil
}

func (b *backend) String() string { return "file://" + b.path }

func (b *backend) Traits() driver.Traits {
	return driver.Traits{
		FIFO: true, Shared: true, Counting: true, Fencing: true, Values: true, Push: pushes,
		Liveness: driver.ProcessBound,
	}
}

// Open starts a session, which nothing but the end of the process expires.
func (b *backend) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	s, err := b.use(ctx)
	if err != nil {
		return nil, 0, refuse(err)
	}
	// After a failure the first to look must find it, not the first to hold.
	err = s.mayWrite()
	if err == nil {
		err = s.check()
	}
	if err != nil {
		s.leave()
		return nil, 0, err
	}
	n, err := openSession(s, o)
	if err != nil {
		s.leave()
		return nil, 0, refuse(fmt.Errorf("open a session in %s: %w", b.path, err))
	}
	s.sweepSometimes(ctx)
	return n, driver.Forever, nil
}
