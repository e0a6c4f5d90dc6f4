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
// mutexes name/0 to name/(n-1), which others may take by these names. It is a handle,
// as a Mutex is; clients that disagree about n share the slots that both have.
//
// As a [Locker] it can be used with [Do]; [LockAll] and [LockAny] refuse it.
type Pool struct {
	client *Client
	handle handle
	n      int
	opts   []LockOption
}

// Pool returns the handle of a pool of n slots, 1 to 65536. A wrong name or n is reported by the
// first use.
func (c *Client) Pool(name string, n int, opts ...LockOption) *Pool {
	return &Pool{c, c.handle(name, driver.Whole, opts), n, opts}
}

// Lock takes a free slot, drawn at random so that many who ask at once seldom meet; if all are
// taken it waits, for 16 of them, as [LockAny] does. [Lease.Slot] says which it has.
func (p *Pool) Lock(ctx context.Context) (*Lease, error) { return p.take(ctx, true) }

// TryLock takes a free slot, and returns an error wrapping ErrBusy if it finds none.
func (p *Pool) TryLock(ctx context.Context) (*Lease, error) { return p.take(ctx, false) }

func (p *Pool) take(ctx context.Context, wait bool) (*Lease, error) {
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
	return l, nil
}

func (p *Pool) slot(i int) string { return fmt.Sprintf("%s/%d", p.handle.name, i) }

func (p *Pool) check() error {
	if p.n < 1 || p.n > maxSlots {
		return fmt.Errorf("%w: a pool has 1 to %d slots, not %d", ErrInvalidOption, maxSlots, p.n)
	}
	if p.handle.cfg.reentrant || p.handle.cfg.deadlock > 0 {
		return fmt.Errorf("%w: Reentrant and FailOnDeadlock are for one lock, and a pool gives any", ErrInvalidOption)
	}
	return errors.Join(p.handle.err, driver.CheckName(p.handle.name), driver.CheckName(p.slot(p.n-1)))
}

func (p *Pool) part() part {
	return p.client.part(p, &p.handle, driver.Whole, fmt.Errorf("%w: a pool is taken alone, by its Lock or Do", ErrInvalidOption))
}

// Slot returns the number of the slot, for a lease of a [Pool]: the number in the last part of
// its name, and -1 if there is none.
func (l *Lease) Slot() int {
	if n, err := strconv.Atoi(path.Base(l.Name())); err == nil {
		return n
	}
	return -1
}
