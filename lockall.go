package hasp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hasplock/hasp/driver"
)

// LockAll takes handles, not names: readers, permits, notes and limits can be mixed in one call and
// one type. The order is that of the names; all are of one client, since nothing orders two stores
// for everybody (rejected: an identity that each store keeps for it, 540 lines). It returns a
// MultiLease: one loss, one release, but a token per name, since each name's resource has seen its
// own.

// Locker is a lock that [Do], [LockAll] and [LockAny] can take: a [*Mutex], the writer's side of an
// [*RWMutex], its reader's side ([RWMutex.RLocker]), or permits of a semaphore
// ([Semaphore.Locker]). A [*Pool] is for Do alone.
type Locker interface {
	Lock(ctx context.Context) (*Lease, error)
	TryLock(ctx context.Context) (*Lease, error)

	part() part
}

// part says which lock a Locker is, for the order and to find one that is named twice.
type part struct {
	Locker
	*handle
	client *Client
	units  int64
	err    error // of its name and options
}

// compare sorts by name, and of one lock the strongest side to the front.
func (p part) compare(o part) int {
	return cmp.Or(cmp.Compare(p.name, o.name), cmp.Compare(o.units, p.units))
}

func (p part) same(o part) bool { return p.name == o.name }

func (c *Client) part(l Locker, h *handle, units int64, err error) part {
	return part{l, h, c, units, cmp.Or(err, driver.CheckName(h.name))}
}

// LockAll waits until it holds all the locks, or none: if it fails, what it had is
// given back. It takes them one after the other in the order of their names, so that two
// calls never wait for each other, in any order they were given. Different kinds may be
// mixed; all must be of one client, since nothing orders the locks of two stores for
// everybody. A lock named as reader and as writer is taken as writer. Locks that are lost
// again while LockAll waits for the others are taken anew.
//
// ctx bounds the waiting only. The errors are those of [Mutex.Lock]; a context that holds
// one of the locks already gets ErrDeadlock (but see [Reentrant]).
func LockAll(ctx context.Context, locks ...Locker) (*MultiLease, error) {
	for {
		m, again, err := lockAll(ctx, locks, Locker.Lock)
		if err == nil || !again {
			return m, err
		}
	}
}

// TryLockAll returns all the locks if all are free, and otherwise an error wrapping
// ErrBusy that names the one that is not. For a moment others may find some of them taken
// nevertheless. See [Mutex.TryLock].
func TryLockAll(ctx context.Context, locks ...Locker) (*MultiLease, error) {
	m, _, err := lockAll(ctx, locks, Locker.TryLock)
	return m, err
}

// lockAll makes one attempt. again says that it failed for the loss of a lock that it had
// already.
func lockAll(ctx context.Context, locks []Locker, take func(Locker, context.Context) (*Lease, error)) (_ *MultiLease, again bool, err error) {
	parts, err := partsOf(ctx, locks)
	if err == nil {
		parts, err = inOrder(parts)
	}
	if err != nil {
		return nil, false, fmt.Errorf("hasp: lock all: %w", err)
	}
	// Every lock is waited for with a context that is known to hold those taken before, and
	// that ends with the loss of one of them.
	taken := &takenLeases{ctx: ctx, byName: make(map[clientName]*Lease, len(parts))}
	held, cancel := context.WithCancelCause(context.WithValue(ctx, leaseKey{}, taken))
	defer cancel(nil)
	for _, p := range parts {
		l, err := take(p.Locker, held)
		if err != nil {
			m := &MultiLease{taken: taken, leases: taken.list}
			again = ctx.Err() == nil && errors.Is(m.Err(), ErrLost)
			m.giveBack()
			return nil, again, err
		}
		taken.add(l)
		defer context.AfterFunc(l.Context(), func() { cancel(l.Err()) })()
	}
	return &MultiLease{taken: taken, leases: taken.list}, false, nil
}

// partsOf refuses what is wrong before any I/O.
func partsOf(ctx context.Context, locks []Locker) ([]part, error) {
	if ctx == nil {
		return nil, errNilContext
	}
	if len(locks) == 0 {
		return nil, fmt.Errorf("%w: no lock is named", ErrInvalid)
	}
	parts := make([]part, len(locks))
	for i, l := range locks {
		if l == nil {
			return nil, fmt.Errorf("%w: a lock is nil", ErrInvalid)
		}
		p := l.part()
		if p.err != nil {
			return nil, fmt.Errorf("lock %q at %s: %w", p.name, p.client.backend, p.err)
		}
		if first := parts[0]; i > 0 && p.client != first.client {
			return nil, fmt.Errorf("%w: %q at %s and %q at %s are locks of two clients; take all from one, or one after the other in an order that all programs keep",
				ErrInvalid, first.name, first.client.backend, p.name, p.client.backend)
		}
		parts[i] = p
	}
	return parts, nil
}

// inOrder sorts the locks and leaves each once.
func inOrder(parts []part) ([]part, error) {
	slices.SortStableFunc(parts, part.compare)
	for i, p := range parts[1:] {
		if before := parts[i]; p.same(before) && (p.capacity != driver.Whole || before.capacity != driver.Whole) {
			return nil, fmt.Errorf("%w: the semaphore %q is named twice", ErrInvalid, p.name)
		}
	}
	return slices.CompactFunc(parts, part.same), nil
}
