package hasp

import (
	"context"
	"fmt"
)

// Reentrant lets the holder of the lock take it again: Lock and TryLock with a context
// made from [Lease.Context] return another lease of the same entry at once, with the same
// token, and the store has the lock until the last of them is released. Without Reentrant
// such a Lock fails with ErrDeadlock, since it would wait for itself for ever.
//
// Go knows no owner of a goroutine, so the owner travels in the context. A writer may
// take the lock again as writer or reader, a reader as reader. A reader cannot become the
// writer: two that tried would wait for each other. [MinHold] and the other limits are
// those of the first lease.
func Reentrant() LockOption {
	return func(c *lockConfig) { c.reentrant = true }
}

// again serves a request whose context holds the name already.
func (l *Lease) again(ctx context.Context, r *request) (*Lease, error) {
	if !r.reentrant {
		return nil, fmt.Errorf("%w: this context already holds the lock, and would wait for itself for ever (see Reentrant)", ErrDeadlock)
	}
	return l.entry.again(ctx, r.units)
}

// onlyLocked reports whether a lease that has not ended is the entry's only one.
func (e *entry) onlyLocked(l *Lease) bool { return e.newest == l && l.before == nil }

// dropLocked takes a lease out that is not the only one.
func (e *entry) dropLocked(l *Lease) {
	at := &e.newest
	for *at != l {
		at = &(*at).before
	}
	*at, l.before = l.before, nil
}
