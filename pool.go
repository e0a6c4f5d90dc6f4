package hasp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strconv"

	"github.com/hasplock/hasp/driver"
)

// maxSlots bounds a pool: a caller that finds it full has asked for each of its locks.
const maxSlots = 1 << 16

// Pool has n locks that are alike, of which one takes any: worker ids, devices, ports. They are the
// mutexes name/0 to name/(n-1), which others may take by these names. It is a handle, as a Mutex
// is; clients that disagree about n share the slots that both have. It is no [Locker]: which lock
// it takes is open, so that several cannot be taken in one order.
type Pool struct {
	client *Client
	handle handle
	n      int
	opts   []LockOption
}

// Slot is the lease of one of a pool's locks.
type Slot struct {
	*Lease
	Number int // 0 to n-1
}

// Release is [Lease.Release].
func (s *Slot) Release(ctx context.Context) error {
	if s == nil {
		return (*Lease)(nil).Release(ctx)
	}
	return s.Lease.Release(ctx)
}

// Unlock is [Lease.Unlock].
func (s *Slot) Unlock() {
	if s != nil {
		s.Lease.Unlock()
	}
}

// Pool returns the handle of a pool of n slots, 1 to 65536. A wrong name or n is reported by the
// first use.
func (c *Client) Pool(name string, n int, opts ...LockOption) *Pool {
	return &Pool{c, c.handle(name, driver.Whole, opts), n, opts}
}

// Lock takes a free slot, drawn at random so that many who ask at once seldom meet; if all are
// taken it waits, for 16 of them, as [LockAny] does.
func (p *Pool) Lock(ctx context.Context) (*Slot, error) { return p.take(ctx, true) }

// TryLock takes a free slot, and otherwise returns an error as [TryLockAny] does.
func (p *Pool) TryLock(ctx context.Context) (*Slot, error) { return p.take(ctx, false) }

// Do runs fn while it has a slot, as [Do] does under a lock.
func (p *Pool) Do(ctx context.Context, fn func(ctx context.Context, slot *Slot) error) error {
	if fn == nil {
		return errDoNil
	}
	var slot *Slot
	return do(ctx, func(ctx context.Context) (_ *Lease, err error) {
		if slot, err = p.Lock(ctx); err != nil {
			return nil, err
		}
		return slot.Lease, nil
	}, func(ctx context.Context, _ *Lease) error { return fn(ctx, slot) })
}

func (p *Pool) take(ctx context.Context, wait bool) (*Slot, error) {
	err := p.check()
	if ctx == nil {
		err = errNilContext
	}
	if err != nil {
		return nil, p.client.wrap(ctx, "lock a slot of", p.handle.name, err)
	}
	slots := make([]Locker, p.n)
	for i, at := range rand.Perm(p.n) {
		slots[i] = p.client.Mutex(p.slot(at), p.opts...)
	}
	l, err := choose(ctx, slots, wait)
	if err != nil {
		return nil, fmt.Errorf("hasp: lock any of the %d slots of %q: %w", p.n, p.handle.name, err)
	}
	number, _ := strconv.Atoi(path.Base(l.Name())) // slot made the name
	return &Slot{l, number}, nil
}

func (p *Pool) slot(i int) string { return fmt.Sprintf("%s/%d", p.handle.name, i) }

func (p *Pool) check() error {
	if p.n < 1 || p.n > maxSlots {
		return fmt.Errorf("%w: a pool has 1 to %d slots, not %d", ErrInvalid, maxSlots, p.n)
	}
	if p.handle.cfg.reentrant || p.handle.cfg.deadlock > 0 {
		return fmt.Errorf("%w: Reentrant and FailOnDeadlock are for one lock, and a pool gives any", ErrInvalid)
	}
	return errors.Join(p.handle.err, driver.CheckName(p.handle.name), driver.CheckName(p.slot(p.n-1)))
}
