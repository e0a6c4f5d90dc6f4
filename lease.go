package hasp

import (
	"context"
	"time"

	"github.com/hasplock/hasp/driver/kit/bootclock"
)

// Lease is a held lock. Code that has the Lease owns the lock; a goroutine, a process or a Mutex
// value owns nothing. Its methods may be called at once from many goroutines.
type Lease struct {
	entry  *entry
	parent context.Context   // the caller's, for its values
	since  bootclock.Instant // when it was granted; its boot time only if that is bounded

	// Guarded by entry.mu.
	before *Lease // of the same entry and not ended: see entry.newest
	err    error  // why it is no longer held, once that is so
	ctx    context.Context
	endCtx context.CancelCauseFunc
}

// workContext is the context for work under leases. A timer ends it at the deadline, but after a
// pause of the process the work may run before any timer does: so Err and Done ask the clocks, by
// trusted, as Held does. Contexts made from it are plain ones: they end with it, and know of the
// end a moment later. Rejected: a promise that the channel is closed "at once".
type workContext struct {
	context.Context
	endIfOver func() // ends the context if the trust is over
}

func (c *workContext) Done() <-chan struct{} {
	c.endIfOver()
	return c.Context.Done()
}

func (c *workContext) Err() error {
	c.endIfOver()
	return c.Context.Err()
}

// Name returns the lock's name.
func (l *Lease) Name() string { return l.entry.name }

// ID returns the id of the entry in the store, as Inspect shows it.
func (l *Lease) ID() string { return l.entry.id }

// Token returns the fencing token of this grant: greater than that of every earlier grant
// of the name. It is 0 where the store cannot promise that (Traits().Fencing is false).
// Hand it to the resource with every write, and have the resource refuse a smaller one
// than it has seen.
//
// A token names what the store has granted. Leases that share one grant, those taken again with
// [Reentrant], share its token.
func (l *Lease) Token() uint64 { return l.entry.token }

// Held reports whether the lease may be relied on at this moment. It is computed from the
// clocks at every call, so the first call after a pause already tells the truth.
func (l *Lease) Held() bool {
	if l == nil || !l.entry.trusted() {
		return false
	}
	l.entry.mu.Lock()
	defer l.entry.mu.Unlock()
	return l.err == nil
}

// Deadline returns when Held ends if no renewal succeeds from now on (each renewal moves
// it), or when a limit of the holder's own ends it ([MaxHold], [StallAfter]) if that is
// sooner. The zero time means never: the store is bound to the process.
func (l *Lease) Deadline() time.Time {
	at := l.entry.session.deadline(l.entry)
	if own, ok := l.entry.limitLeft(); ok {
		if end := time.Now().Add(own); at.IsZero() || end.Before(at) {
			return end
		}
	}
	return at
}

// Context returns the context for the work under the lock. It carries the values of the context
// given to Lock, but not its end: it ends when the lease is lost, with the *LostError as its cause,
// or released. [Lease.Bind] makes a context that ends with another one as well, such as the one
// given to Lock. A Lock of the same name with this context, or with one made from it, would wait
// for itself, and fails with ErrDeadlock (but see [Reentrant]).
//
// It ends no later than the deadline, before the store may hand the lock on. Its own Err and Done
// ask the clocks, so that the first look after a pause of the process already reports a loss. A
// channel that Done returned before the pause, and a context made from it, follow as soon as a
// timer runs.
func (l *Lease) Context() context.Context {
	l.entry.endIfOver()
	l.entry.mu.Lock()
	defer l.entry.mu.Unlock()
	if l.ctx == nil {
		base := context.WithValue(context.WithoutCancel(l.parent), leaseKey{}, l)
		ctx, end := context.WithCancelCause(base)
		l.ctx, l.endCtx = &workContext{ctx, l.entry.endIfOver}, end
		if l.err != nil {
			l.endCtx(l.err)
		}
	}
	return l.ctx
}

// Err returns nil while the lease is held, a *LostError once it is lost, and an error
// wrapping ErrNotHeld once it is released.
func (l *Lease) Err() error {
	l.entry.endIfOver()
	l.entry.mu.Lock()
	defer l.entry.mu.Unlock()
	return l.err
}

// endLocked ends the lease for those who look, with entry.mu held.
func (l *Lease) endLocked(err error) {
	l.err = err
	if l.endCtx != nil {
		l.endCtx(err)
	}
}

// nilContext stands in for a nil one: ended from the start, with a cause that says so.
var nilContext = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errNilContext)
	return ctx
}()
