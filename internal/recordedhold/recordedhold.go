// Package recordedhold locks, holds and releases, and has package history record all that the
// holder was told. Tests with random faults and hasp torture share it: what is recorded, and in which
// order, decides what the checks can prove.
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

	// Begin is called after the grant, End before the release, also if the lock is lost. nil: nothing.
	Begin, End func(*hasp.Lease)
}

// Run waits for the lock until ctx ends, holds it for For or until it is lost, and
// releases it. The error is that of acquiring: what a store out of reach makes of the
// release is for the history, and so is ctx, which a holder outlives.
func (h Hold) Run(ctx context.Context, rec *history.Recorder) error {
	if h.Locker == nil {
		h.Locker, h.Claim = h.Client.Mutex(h.Name), history.Exclusive()
	}
	op := rec.Acquire(h.Who, h.Name, h.Claim)
	l, err := h.Locker.Lock(ctx)
	if err != nil {
		op.Unknown(err) // its entry may be there yet
		return err
	}
	op.Granted(l.Token(), 0)
	stop := op.Watch(l.Held, l.Lost(), 5*time.Millisecond)
	if h.Begin != nil {
		h.Begin(l)
	}
	select {
	case <-time.After(h.For):
	case <-l.Lost():
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
