package etcdlock

import (
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Held has what StillHeld needs to know of a lease. *hasp.Lease implements it.
type Held interface {
	Name() string
	ID() string
	Token() uint64
}

// StillHeld returns the comparison that makes a transaction of yours valid only while the lock
// is held, as etcd itself sees it at the moment of the write:
//
//	resp, err := client.Txn(ctx).
//		If(backend.StillHeld(lease)).
//		Then(clientv3.OpPut("orders/42", "paid")).
//		Commit()
//
// If resp.Succeeded is false, the lock was lost before, and nothing was written. This is
// stronger than checking a token at the resource: not even a holder that is paused between
// the check and the write can do harm. The writes must be in the same etcd cluster.
//
// It is for exclusive locks: mutexes, writers and leaders. The comparison never holds for
// readers' and semaphores' leases, whose very point is that others write as well, nor for a
// writer's after its Downgrade. A lease that was handed on (hasp.Lease.Export) is the same
// grant for the importer: comparisons that the exporter made hold as long as the importer's.
func (b *Backend) StillHeld(l Held) clientv3.Cmp {
	q := b.queue(l.Name())
	key := q.base // no entry's: what is not found is not held
	b.sessions.Range(func(s, _ any) bool {
		t := s.(*session).slots.find(l.ID(), q.base)
		if t == nil {
			return true
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.contentLocked().units == t.request.Capacity {
			key = t.key
		}
		return false
	})
	return clientv3.Compare(clientv3.CreateRevision(key), "=", int64(l.Token()))
}
