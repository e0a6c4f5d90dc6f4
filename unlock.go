package hasp

import (
	"context"
	"errors"
	"time"
)

// unlockBound is how long Unlock waits for the store: as long as Close does.
const unlockBound = closeBound

// Unlock gives the lock back, in a deferred call:
//
//	defer lease.Unlock()
//
// It is [Lease.Release] with a fresh context, which has the values of the one given to Lock and
// ends after five seconds ([MinHold] not counted); what the store has not confirmed by then is done
// in the background. It does nothing if the lease was released before, or is nil: so a function may
// defer Unlock for its early returns, and look at the error of Release at its end.
//
// An Unlock that finds the lease lost, or whose outcome is unknown, has no error to return. The
// client's observers are told ([EventLost], or [EventReleased] with Err); if it has none,
// log/slog's default logger is. See [SlogObserver].
func (l *Lease) Unlock() {
	if l != nil {
		_ = l.unlock() // told
	}
}

func (l *Lease) unlock() error {
	e := l.entry
	e.mu.Lock()
	parent, bound := l.parent, unlockBound
	if e.limit != nil {
		bound += max(e.minLeftLocked(), 0) // which Release waits for
	}
	e.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(parent), bound)
	defer cancel()
	err := l.Release(ctx)
	if errors.Is(err, ErrNotHeld) {
		return nil
	}
	if err != nil {
		e.session.client.logUnheard(Event{
			Kind: EventReleased, Context: ctx, Name: e.name, Token: e.token, Hold: time.Since(l.since.at), Err: err,
		})
	}
	return err
}

// Unlock gives all the locks back, at the same time, in a deferred call. See [Lease.Unlock].
func (m *MultiLease) Unlock() {
	if m != nil {
		_ = m.together((*Lease).unlock)
	}
}
