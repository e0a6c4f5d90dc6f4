package hasp

import (
	"context"
	"fmt"

	"github.com/hasplock/hasp/driver"
)

// Mutex is an exclusive lock by name. It is a handle: making one costs nothing and sends nothing,
// any number may exist for a name, and the [Lease] that Lock returns owns the lock. Two goroutines
// contend for it like two machines.
//
// A Mutex and the RWMutex of the same name exclude each other.
type Mutex struct {
	client *Client
	handle handle
}

// Mutex returns the handle of the exclusive lock called name. A wrong name or option is
// reported by the first use.
func (c *Client) Mutex(name string, opts ...LockOption) *Mutex {
	return &Mutex{c, c.handle(name, driver.Whole, opts)}
}

// Lock waits for its turn, first come, first served where the store keeps an order
// (Traits().FIFO), and returns the lease. ctx bounds the waiting only; work under the
// lock with [Lease.Context].
//
// If ctx ends, Lock returns at once with an error that wraps ctx's, and what it left in
// the store is removed in the background. After a deadline it asks who holds the lock, for at
// most 100 ms, and says so: see [BusyError]. If the store does not answer when Lock begins,
// the error wraps ErrUnknown and is returned as soon as that is known (at the latest after
// the TTL, or five seconds if that is longer); once waiting in the queue, Lock outlasts an
// outage of the store and queues up again if its place was lost.
func (m *Mutex) Lock(ctx context.Context) (*Lease, error) {
	return m.client.acquire(ctx, m.handle.ask("lock", driver.Whole), m.handle.err)
}

// TryLock returns the lease if the lock is free, and otherwise an error wrapping ErrBusy,
// without waiting for anything but the store's answer. A lock that others wait for is not
// free. A store that may have forgotten locks refuses with ErrQuarantine; the *BusyError says for
// how long.
func (m *Mutex) TryLock(ctx context.Context) (*Lease, error) {
	return m.client.acquire(ctx, m.handle.try("try lock", driver.Whole), m.handle.err)
}

func (m *Mutex) part() part { return m.client.part(m, &m.handle, driver.Whole, m.handle.err) }

// RWMutex is a read-write lock by name: one writer, or any number of readers. Readers and
// writers stand in one queue in the order they came: a waiting writer holds back the
// readers behind it, so it cannot starve, and readers that stand together enter together.
//
// Like a Mutex it is only a handle, and excludes the Mutex of the same name.
type RWMutex struct {
	client *Client
	handle handle
}

// RWMutex returns the handle of the read-write lock called name. A store without
// Traits().Shared refuses the use of RLock with ErrUnsupported.
func (c *Client) RWMutex(name string, opts ...LockOption) *RWMutex {
	return &RWMutex{c, c.handle(name, driver.Whole, opts)}
}

// Lock waits for the writer's lock. See [Mutex.Lock].
func (m *RWMutex) Lock(ctx context.Context) (*Lease, error) {
	return m.client.acquire(ctx, m.handle.ask("lock", driver.Whole), m.handle.err)
}

// TryLock tries the writer's lock. See [Mutex.TryLock].
func (m *RWMutex) TryLock(ctx context.Context) (*Lease, error) {
	return m.client.acquire(ctx, m.handle.try("try lock", driver.Whole), m.handle.err)
}

// RLock waits for a reader's lock. See [Mutex.Lock].
//
// RLock with a context that holds the name already, as reader or writer, fails with
// ErrDeadlock: if a writer came in between, both would wait for ever.
func (m *RWMutex) RLock(ctx context.Context) (*Lease, error) {
	return m.client.acquire(ctx, m.handle.ask("read-lock", 1), m.shared())
}

// TryRLock tries a reader's lock. It is busy while a writer holds or waits. See
// [Mutex.TryLock].
func (m *RWMutex) TryRLock(ctx context.Context) (*Lease, error) {
	return m.client.acquire(ctx, m.handle.try("try read-lock", 1), m.shared())
}

// RLocker returns the reader's side of the lock, for [Do] and [LockAll]: its Lock and TryLock are
// RLock and TryRLock.
func (m *RWMutex) RLocker() Locker { return rlocker{m} }

type rlocker struct{ m *RWMutex }

func (r rlocker) Lock(ctx context.Context) (*Lease, error)    { return r.m.RLock(ctx) }
func (r rlocker) TryLock(ctx context.Context) (*Lease, error) { return r.m.TryRLock(ctx) }
func (r rlocker) part() part                                  { return r.m.client.part(r, &r.m.handle, 1, r.m.shared()) }

func (m *RWMutex) part() part { return m.client.part(m, &m.handle, driver.Whole, m.handle.err) }

func (m *RWMutex) shared() error {
	if !m.client.traits.Shared {
		return fmt.Errorf("%w: it has no read locks", ErrUnsupported)
	}
	return m.handle.err
}
