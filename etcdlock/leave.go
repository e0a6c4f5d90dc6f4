package etcdlock

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hasplock/hasp/driver"
)

// Leave deletes our key, and only ours.
func (t *ticket) Leave(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t.mu.Lock()
	t.left = true
	rev, open := t.rev, t.unanswered > 0
	watches := t.unwatch(true)
	t.mu.Unlock()
	for _, w := range watches {
		t.session.watches.release(w)
	}
	var err error
	switch {
	case open:
		err = t.withdraw(ctx)
	case rev == 0:
		// Nothing of ours is at the key, or on its way there: no request was made, or the Leave
		// before this one has withdrawn it and could not tell (withdrawFull). So the key is free.
		err = fmt.Errorf("%w: it never entered", driver.ErrGone)
	default:
		_, err = t.deleteKey(ctx)
	}
	done := err == nil || isGone(err)
	t.session.pendingReleases.note(t, done)
	if done {
		t.freeKey(true)
	}
	return err
}

// deleteKey deletes our key as we know it, and does also, whether it is there or not.
//
// The create revision is not enough to know it by: it stays when another session adopts the
// entry, whose key must stay, too. The mod revision tells. It also changes with a publication
// of ours whose answer was lost; then the key still has our id, and the deletion is repeated.
// Where we know no revision, the value tells our use of the key, since it has our id.
func (t *ticket) deleteKey(ctx context.Context, also ...*pb.RequestOp) (*pb.TxnResponse, error) {
	for {
		t.mu.Lock()
		ours := modifiedAt(t.key, t.mod)
		if t.rev == 0 {
			ours = contains(t.key, encode(t.current()))
		}
		t.mu.Unlock()
		x := &pb.TxnRequest{
			Compare: []*pb.Compare{ours},
			Success: append([]*pb.RequestOp{remove(t.key)}, also...),
			Failure: append([]*pb.RequestOp{get(t.key)}, also...),
		}
		var resp *pb.TxnResponse
		var err error
		if len(also) == 0 {
			resp, err = t.session.leaves.txn(ctx, "leave", t.request.Name, x)
		} else { // it is about the epoch, and so about all entries
			resp, err = t.session.txn(ctx, "leave", x)
		}
		if err != nil || resp.Succeeded {
			return resp, err
		}
		if !t.isOurs(only(found(resp, 0))) {
			return resp, fmt.Errorf("%w: etcd has no such key", driver.ErrGone)
		}
	}
}

// isOurs returns whether what is at our key is the entry that we have put there, and
// notes its last change, or that another has adopted it. A value that is no record of
// hasp's, which was put there by hand, takes nothing from us.
func (t *ticket) isOurs(kv *mvccpb.KeyValue) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if kv == nil || t.rev == 0 || kv.CreateRevision != t.rev {
		return false
	}
	var r record
	if json.Unmarshal(kv.Value, &r) == nil && r.ID != "" && r.ID != t.request.ID {
		t.session.slots.handedOn()
		return false
	}
	t.mod = max(t.mod, kv.ModRevision)
	return true
}

// withdraw deletes the key if it is there, and begins a new epoch, so that none of our
// requests to enter or to adopt can make it ours any more. Should this request itself arrive
// late, when the key has been given back and taken again, it deletes nothing.
func (t *ticket) withdraw(ctx context.Context) error {
	e := &t.session.epoch
	resp, err := t.deleteKey(ctx, e.move(t.session.lease))
	if isFull(err) {
		return t.withdrawFull(ctx, err)
	}
	if resp == nil {
		return err
	}
	e.reached(resp.Header.Revision)
	t.mu.Lock()
	t.unanswered = 0 // there are no others: Leave was called, or Enqueue has not returned
	t.mu.Unlock()
	return err
}

// freeKey returns the key for others to use: because it is known to be gone, or, if not,
// only when nothing of ours is or can come to be there.
func (t *ticket) freeKey(gone bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.hasKey || t.unanswered > 0 || t.rev != 0 && !gone {
		return
	}
	t.session.slots.free(t)
	t.hasKey = false
}

// pendingReleases are the entries that were to leave and have not been confirmed to be gone. The
// core asks again for two TTLs and then counts on the store to remove them; but the store does so
// only with the session, which may live for weeks. So each renewal tries them again. It takes a
// store that renews and does not delete for that long to come to this: one without disk space, see
// ticket.withdraw.
type pendingReleases struct {
	mu      sync.Mutex
	tickets map[*ticket]bool
}

// note keeps the outcome of a Leave.
func (o *pendingReleases) note(t *ticket, done bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if done {
		delete(o.tickets, t)
	} else {
		o.tickets[t] = true
	}
}

// retryReleases tries them in the background. They are taken out for that, so that the next renewal
// does not try one that is under way; Leave puts back what has failed.
func (s *session) retryReleases() {
	o := &s.pendingReleases
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.tickets) == 0 || !s.startWorker() {
		return
	}
	due := o.tickets
	o.tickets = map[*ticket]bool{}
	go func() {
		defer s.workers.Done()
		for t := range due {
			_ = t.Leave(s.ctx) // which notes the outcome
		}
	}()
}

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
