// Package witness locks, holds and releases, and has package history record all that the
// holder was told. Tests that do harm at random share it: what is recorded, and in which
// order, decides what the judges can prove.
package witness

import (
	"context"
	"errors"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/history"
)

// Turn is one hold of one mutex.
type Turn struct {
	Client *hasp.Client
	Who    string // in the history
	Name   string // of the lock
	Hold   time.Duration
	TTL    time.Duration // bounds the release: what has not answered by then has expired
}

// Take waits for the lock until ctx ends, holds it for Hold or until it is lost, and
// releases it. The error is that of acquiring: what a store out of reach makes of the
// release is for the history, and so is ctx, which a holder outlives.
func (t Turn) Take(ctx context.Context, rec *history.Recorder) error {
	op := rec.Acquire(t.Who, t.Name, history.Exclusive())
	l, err := t.Client.Mutex(t.Name).Lock(ctx)
	if err != nil {
		op.Unknown(err) // its entry may be there yet
		return err
	}
	op.Granted(l.Token(), 0)
	stop := op.Watch(l.Held, l.Lost(), 5*time.Millisecond)
	select {
	case <-time.After(t.Hold):
	case <-l.Lost():
	}
	stop()
	op.Releasing()
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.TTL)
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
