package etcdlock

import (
	"slices"
	"strconv"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hasplock/hasp/driver"
)

// slots hands out the keys of a session's entries and takes them back, so that the same
// few are used again and again.
//
// A separate key for each entry would be simpler, and a trap: etcd keeps every key that
// ever existed in its index until the next compaction (which may not be configured),
// and each read of a range walks over them. After 15,000 acquisitions of one name, the server's
// work for the next had doubled.
//
// The entry's id is in the value then, and what tells one use of a key from the next is the
// create revision. A key may be taken again once the store has confirmed that the last
// entry has left it, and that no request of that entry can still make it (see leave.go).
// What is never confirmed is never given back: it ends with the session.
//
// A key that another session has adopted is gone for us while it still exists, and we are
// not told when it ends. No key of ours is called like it again: the next that are taken
// have the number of the round behind theirs. That costs etcd's index a dead key for each name
// in use and transfer; to watch adopted keys would cost us memory for as long as they live.
type slots struct {
	lease string

	mu      sync.Mutex
	used    map[string][]*ticket // by what is in front of the lease in the key
	round   int
	tickets map[string]*ticket // that have a key, also another session's; by ID
}

// take returns a key that no other entry has.
func (s *slots) take(t *ticket) string {
	prefix := t.queue().keyPrefix(&t.request)
	s.mu.Lock()
	defer s.mu.Unlock()
	row := s.used[prefix]
	i := slices.Index(row, nil)
	if i < 0 {
		i = len(row)
		row = append(row, nil)
	}
	row[i] = t
	s.used[prefix] = row
	s.tickets[t.request.ID] = t
	key := prefix + s.lease + "-" + strconv.Itoa(i)
	if s.round > 0 {
		key += "-" + strconv.Itoa(s.round)
	}
	return key
}

// adopt notes a ticket whose key is another session's.
func (s *slots) adopt(t *ticket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tickets[t.request.ID] = t
}

// handedOn notes that another session has adopted a key. Its ticket frees it later.
func (s *slots) handedOn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.round++
}

// free takes a ticket's key back.
func (s *slots) free(t *ticket) {
	prefix := t.queue().keyPrefix(&t.request)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tickets[t.request.ID] == t {
		delete(s.tickets, t.request.ID)
	}
	row := s.used[prefix]
	if i := slices.Index(row, t); i >= 0 {
		row[i] = nil
	}
	for len(row) > 0 && row[len(row)-1] == nil {
		row = row[:len(row)-1]
	}
	if len(row) > 0 {
		s.used[prefix] = row
	} else {
		delete(s.used, prefix)
	}
}

// find returns the ticket with this id, or nil.
func (s *slots) find(id string) *ticket {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tickets[id]
}

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
// writer's after its Downgrade.
func (b *Backend) StillHeld(l Held) clientv3.Cmp {
	q := b.queue(l.Name())
	key := q.base // no entry's: what is not found is not held
	b.sessions.Range(func(s, _ any) bool {
		t := s.(*session).slots.find(l.ID())
		if t == nil {
			return true
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.base == q.base && t.current().Units == driver.Whole {
			key = t.key
		}
		return false
	})
	return clientv3.Compare(clientv3.CreateRevision(key), "=", int64(l.Token()))
}
