package hasp

import (
	"context"
	"fmt"

	"github.com/hasplock/hasp/driver"
)

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
