package etcdlock

import (
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// A request to enter whose caller has gone can still reach the store: a gRPC call
// that was cancelled may sit in a buffer of the network or of a stopped member, and be
// applied after the Leave that was meant to undo it. Its key would be attached to the session's
// lease, which is kept alive: a lock without a holder, for as long as the client
// lives. (Deleting again later does not help: later than what?)
//
// Therefore every session has an epoch, a key that does not exist at first. Each request
// to enter carries the comparison "the epoch is still the one I know". A Leave of an entry
// with a request of unknown outcome moves the epoch on in the transaction that deletes
// the entry. In etcd's order of transactions, such a request is then either before the
// Leave, which deletes what it made; or behind it, and its comparison fails. Requests of
// other tickets that are under way meanwhile fail as well; they are told so, learn the
// new epoch in the same answer, and repeat themselves at once.
//
// This costs a comparison that is always made, a write only after trouble, and one key
// that goes with the lease. The alternatives are worse: a tombstone for each such entry
// grows without bound in a session that lives for weeks; and to look for unknown keys of
// the lease later finds nothing until it is too late.
type epoch struct {
	key string // of this session

	mu  sync.Mutex
	rev int64 // the key's mod revision as far as we know; 0 while it does not exist
}

func (e *epoch) now() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rev
}

// reached notes a newer revision. It never goes back: answers may arrive out of order.
func (e *epoch) reached(rev int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.rev = max(e.rev, rev)
}

// is compares the epoch with the one that a request was made in.
func (e *epoch) is(rev int64) *pb.Compare { return modifiedAt(e.key, rev) }

// move begins the next epoch.
func (e *epoch) move(lease int64) *pb.RequestOp { return put(e.key, nil, lease) }
