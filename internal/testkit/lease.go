package testkit

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/hasplock/hasp"
)

// Lock locks a mutex that must become free.
func Lock(t testing.TB, c *hasp.Client, name string) *hasp.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	l, err := c.Mutex(name).Lock(ctx)
	if err != nil {
		t.Fatalf("lock %s: %v", name, err)
	}
	return l
}

// LockDespiteErrors is Lock on a store that has just come back, or has no master for a while: after
// an error it tries again.
func LockDespiteErrors(t testing.TB, c *hasp.Client, name string) *hasp.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*Patience) // the store's start, and the lock
	defer cancel()
	l, err := c.Mutex(name).Lock(ctx)
	for err != nil && ctx.Err() == nil {
		l, err = c.Mutex(name).Lock(ctx)
	}
	if err != nil {
		t.Fatalf("lock %s: %v", name, err)
	}
	return l
}

// UseDespiteErrors locks and releases, where connections may still break that faults have left. Of a release without
// a known outcome the next to lock finds out.
func UseDespiteErrors(t testing.TB, c *hasp.Client, name string) {
	t.Helper()
	l := LockDespiteErrors(t, c, name)
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := l.Release(ctx); err != nil && !errors.Is(err, hasp.ErrUnknown) && !errors.Is(err, hasp.ErrLost) {
		t.Errorf("release: %v", err)
	}
}

// Release gives back a lease that is held.
func Release(t testing.TB, l *hasp.Lease) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := l.Release(ctx); err != nil {
		t.Errorf("release: %v", err) // not Fatal: goroutines of a test release as well
	}
}

// Granted receives the lease that a waiter gets; nil means that it has given up.
func Granted(t testing.TB, got <-chan *hasp.Lease) *hasp.Lease {
	t.Helper()
	l := Await(t, "the grant", got)
	if l == nil {
		t.Fatal("the waiter gave up")
	}
	return l
}

// Lost waits until a lease is lost, for one of these reasons.
func Lost(t testing.TB, l *hasp.Lease, reasons ...hasp.Reason) {
	t.Helper()
	Await(t, "the loss of "+l.Name(), l.Context().Done())
	var lost *hasp.LostError
	if !errors.As(l.Err(), &lost) || !slices.Contains(reasons, lost.Reason) || l.Held() {
		t.Errorf("lost: %v, held %t; want one of %q", l.Err(), l.Held(), reasons)
	}
}
