package etcdlock

import (
	"bytes"
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// isFull returns whether etcd says that it has no space. It says so in two places, and the
// words are the same. Where a request comes in, it is refused and not done. But those that
// came in before the quota was crossed are applied in their order, and the one that finds it
// crossed is done all the same, as on every other member: only the answer is an error. So
// after this error a request may have been done or not. What is certain is that it is over,
// that it will not be done later; so one read tells the outcome.
//
// What was done is kept: to undo it would take a request more, and would take the lock from a
// caller that may have it.
func isFull(err error) bool { return errors.Is(err, rpctypes.ErrNoSpace) }

// readKey returns what is at our key now.
func (t *ticket) readKey(ctx context.Context) (*mvccpb.KeyValue, int64, error) {
	resp, err := t.session.txn(ctx, "see what became of it", &pb.TxnRequest{Success: []*pb.RequestOp{get(t.key)}})
	if err != nil {
		return nil, 0, err
	}
	return only(found(resp, 0)), resp.Header.Revision, nil
}

// enteredFull finds out whether a request to enter was done that was answered with full. It
// returns full if not. If this read fails, or if we die before it, the request counts as one
// of unknown outcome: Enqueue finds the key, or Leave withdraws it, or the lease ends it.
func (t *ticket) enteredFull(ctx context.Context, full error) error {
	kv, rev, err := t.readKey(ctx)
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.unanswered = max(t.unanswered-1, 0)
	there := kv != nil && bytes.Equal(kv.Value, t.written)
	if there {
		t.rev, t.mod, t.view = kv.CreateRevision, kv.ModRevision, view{rev: rev}
	}
	t.mu.Unlock()
	if !there {
		return full
	}
	return nil
}

// withdrawFull is for a request to withdraw that was answered with full. It deletes our key
// without putting anything, which etcd allows, and looks whether a new epoch has begun since
// our requests were sent: by that request, or by another ticket's. If so nothing of ours is
// on its way any more. If not, what is still on its way can arrive when there is space again,
// and we are not done: the core calls again, or pendingReleases does (leave.go).
//
// That the key is not there says little: the first request may have deleted it. So that is
// returned as "unknown", and a caller that asks again is told that it has gone.
func (t *ticket) withdrawFull(ctx context.Context, full error) error {
	e := &t.session.epoch
	resp, err := t.deleteKey(ctx, get(e.key))
	if resp == nil {
		return err
	}
	last := len(resp.Responses) - 1 // behind the operations of deleteKey
	if kv := only(found(resp, last)); kv != nil {
		e.reached(kv.ModRevision)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.now() <= t.epoch {
		return full
	}
	t.unanswered = 0
	if err != nil {
		return full
	}
	return nil
}
