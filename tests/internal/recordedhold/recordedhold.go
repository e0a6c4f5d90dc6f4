// Package recordedhold locks, holds and releases, and has package history record all that the
// holder was told. Tests with random faults share it: what is recorded, and in which
// order, decides what the checks can prove.
package recordedhold

import (
	"context"
	"errors"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/tests/internal/history"
)

// Hold is one hold of one mutex.
type Hold struct {
	Client *hasp.Client
	Who    string // in the history
	Name   string // of the lock
	For    time.Duration
	TTL    time.Duration // bounds the release: what has not answered by then has expired
}

// Run waits for the lock until ctx ends, holds it for For or until it is lost, and
// releases it. The error is that of acquiring: what a store out of reach makes of the
// release is for the history, and so is ctx, which a holder outlives.
func (h Hold) Run(ctx context.Context, rec *history.Recorder) error {
	op := rec.Acquire(h.Who, h.Name, history.Exclusive())
	l, err := h.Client.Mutex(h.Name).Lock(ctx)
	if err != nil {
		op.Unknown(err) // its entry may be there yet
		return err
	}
	op.Granted(l.Token(), 0)
	stop := op.Watch(l.Held, l.Lost(), 5*time.Millisecond)
	select {
	case <-time.After(h.For):
	case <-l.Lost():
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
