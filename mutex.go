package hasp

import (
	"context"

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
// most 100 ms, and says so: see [WaitError]. If the store cannot be reached when Lock
// begins, the error is returned as soon as that is known (at the latest after the TTL,
// wrapping ErrUnknown); once waiting in the queue, Lock outlasts an outage of the store
// and queues up again if its place was lost.
func (m *Mutex) Lock(ctx context.Context) (*Lease, error) {
	return m.client.acquire(ctx, m.handle.ask("lock", driver.Whole), m.handle.err)
}

// TryLock returns the lease if the lock is free, and otherwise an error wrapping ErrBusy,
// without waiting for anything but the store's answer. A lock that others wait for is not
// free.
func (m *Mutex) TryLock(ctx context.Context) (*Lease, error) {
	return m.client.acquire(ctx, m.handle.try("try lock", driver.Whole), m.handle.err)
}

func (m *Mutex) part() part { return m.client.part(m, &m.handle, driver.Whole, m.handle.err) }
