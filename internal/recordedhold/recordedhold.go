// Package recordedhold locks, holds and releases, and has package history record all that the
// holder was told. Tests with random faults and hasp-torture share it: what is recorded, and in
// which order, decides what the checks can prove.
package recordedhold

import (
	"context"
	"errors"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/history"
)

// Hold is one hold of one lock.
type Hold struct {
	Client *hasp.Client
	Who    string // in the history
	Name   string // of the lock
	For    time.Duration
	TTL    time.Duration // bounds the release: what has not answered by then has expired

	Locker hasp.Locker   // nil: the mutex Name
	Claim  history.Claim // of the Locker

	// Lock replaces Client and Locker for a lock that is not hasp's. nil: theirs.
	Lock func(context.Context) (Lease, error)

	// Begin is called after the grant, End before the release, also if the lock is lost. nil:
	// nothing.
	Begin, End func(Lease)

	// Asking is called before the lock is asked for, for those who know more of the acquisition.
	// nil: nothing.
	Asking func(*history.Attempt)
	// Work is done instead of waiting For; it returns when the lock is to be released. nil: nothing
	// is done.
	Work func(Lease, *history.Attempt)
	// Unchecked has the holder believe until it releases, and never ask the lock: for controls.
	Unchecked bool
}

// Lease is a held lock, as *hasp.Lease is.
type Lease interface {
	Token() uint64
	Held() bool
	Context() context.Context
	Release(context.Context) error
}

// Run waits for the lock until ctx ends, holds it for For or until it is lost, and
// releases it. The error is that of acquiring: what a store out of reach makes of the
// release is for the history, and so is ctx, which a holder outlives.
func (h Hold) Run(ctx context.Context, rec *history.Recorder) error {
	if h.Locker == nil {
		h.Claim = history.Exclusive()
	}
	op := rec.Acquire(h.Who, h.Name, h.Claim)
	if h.Asking != nil {
		h.Asking(op)
	}
	l, err := h.lock(ctx)
	if err != nil {
		op.Unknown(err) // its entry may be there yet
		return err
	}
	op.Granted(l.Token(), 0)
	held, lost := l.Held, l.Context().Done()
	if h.Unchecked {
		held, lost = func() bool { return true }, nil
	}
	stop := op.Watch(held, lost, 5*time.Millisecond)
	if h.Begin != nil {
		h.Begin(l)
	}
	if h.Work != nil {
		h.Work(l, op)
	} else {
		select {
		case <-time.After(h.For):
		case <-lost:
		}
	}
	if h.End != nil {
		h.End(l)
	}
	stop()
	op.Releasing()
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.TTL)
	defer cancel()
	switch err := l.Release(rctx); {
	case err == nil:
		op.Released()
	case errors.Is(err, hasp.ErrLost), errors.Is(err, hasp.ErrNotHeld):
		op.NotHeld(err)
	default:
		op.ReleaseUnknown(err)
	}
	return nil
}

func (h Hold) lock(ctx context.Context) (Lease, error) {
	switch {
	case h.Lock != nil:
		return h.Lock(ctx)
	case h.Locker != nil:
		return h.Locker.Lock(ctx)
	}
	return h.Client.Mutex(h.Name).Lock(ctx)
}
