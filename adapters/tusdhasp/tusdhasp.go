// Package tusdhasp has several servers of github.com/tus/tusd share uploads: only one request at a
// time writes to an upload, on whichever server, and a client that resumes on another server gets
// the upload from the request that still has it.
//
//	composer := handler.NewStoreComposer()
//	composer.UseLocker(tusdhasp.New(client))
//
// A request that waits for an upload asks the one that has it to let go, as tusd's own lockers do.
// The loss of a lock asks for the same, so that the writing request stops; what it has sent by then
// is written. The store must show who waits (hasp's AskHolder): the queue strategies do; setnx and
// Redisson's format do not, and Lock answers ErrUnsupported there.
package tusdhasp

import (
	"context"
	"errors"
	"time"

	"github.com/tus/tusd/v2/pkg/handler"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// ReleaseTimeout bounds Unlock, which has no context. A release that gets no answer in this time
// goes on in the background; Client.Close waits for it.
const ReleaseTimeout = 10 * time.Second

// Locker is a tusd handler.Locker. Safe for use by many goroutines.
type Locker struct {
	client *hasp.Client
	opts   []hasp.LockOption
}

// New returns a locker. The lock of an upload is "tusd/" and its ID.
func New(c *hasp.Client, opts ...hasp.LockOption) *Locker { return &Locker{c, opts} }

// NewLock returns the lock of an upload, which is not held yet.
func (l *Locker) NewLock(id string) (handler.Lock, error) {
	return &lock{locker: l, name: "tusd/" + id}, driver.CheckName("tusd/" + id)
}

type lock struct {
	locker *Locker
	name   string
	lease  *hasp.Lease
}

// Lock waits for the upload until ctx ends, which is ErrLockTimeout. requestUnlock is called when
// another request wants the upload, and when the lock is lost.
func (l *lock) Lock(ctx context.Context, requestUnlock func()) error {
	opts := append([]hasp.LockOption{hasp.AskHolder("another request for this upload"),
		hasp.Revocable(0, func(hasp.Owner) { requestUnlock() })}, l.locker.opts...)
	lease, err := l.locker.client.Mutex(l.name, opts...).Lock(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return handler.ErrLockTimeout
	case err != nil:
		return err
	}
	l.lease = lease
	context.AfterFunc(lease.Context(), func() {
		if errors.Is(lease.Err(), hasp.ErrLost) { // it ends by a release, too
			requestUnlock()
		}
	})
	return nil
}

// Unlock lets the next request have the upload. Its error wraps hasp.ErrLost after a loss.
func (l *lock) Unlock() error {
	if l.lease == nil {
		return errors.New("tusdhasp: Unlock without Lock")
	}
	ctx, cancel := context.WithTimeout(context.Background(), ReleaseTimeout)
	defer cancel()
	return l.lease.Release(ctx)
}
