package etcdlock

import (
	"context"
	"errors"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/hasplock/hasp/driver"
)

// Leave deletes our key, and only ours.
func (t *ticket) Leave(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t.mu.Lock()
	t.left = true
	rev, open := t.rev, t.open > 0
	watches := t.unwatch(true)
	t.mu.Unlock()
	for _, w := range watches {
		t.session.watch.drop(w)
	}
	var err error
	switch {
	case open:
		err = t.withdraw(ctx)
	case rev == 0:
		return fmt.Errorf("%w: it never entered", driver.ErrGone)
	default:
		resp, terr := t.session.txn(ctx, "leave", &pb.TxnRequest{
			Compare: []*pb.Compare{createdAt(t.key, rev)},
			Success: []*pb.RequestOp{remove(t.key)},
		})
		err = confirmed(resp, terr)
	}
	done := err == nil || isGone(err)
	t.session.owed.note(t, done)
	if done {
		t.giveBack(true)
	}
	return err
}

// withdraw deletes the key if it is there, and begins a new epoch, so that none of our
// requests to enter can make it any more. Where the create revision is not known, the
// value tells our use of the key, since it has our id: should this request itself arrive
// late, when the key has been given back and taken again, it deletes nothing.
func (t *ticket) withdraw(ctx context.Context) error {
	e := &t.session.epoch
	t.mu.Lock()
	ours := contains(t.key, t.put)
	if t.rev != 0 {
		ours = createdAt(t.key, t.rev)
	}
	t.mu.Unlock()
	move := e.move(t.session.lease)
	resp, err := t.session.txn(ctx, "leave", &pb.TxnRequest{
		Compare: []*pb.Compare{ours},
		Success: []*pb.RequestOp{remove(t.key), move},
		Failure: []*pb.RequestOp{move},
	})
	if errors.Is(err, rpctypes.ErrNoSpace) {
		// Nothing can be put, and so no epoch begun. Deleting is possible, and urgent: the
		// lock may be ours without our knowing. It is not done with that: when there is space
		// again, what is still on its way can still arrive.
		_, _ = t.session.txn(ctx, "leave", &pb.TxnRequest{
			Compare: []*pb.Compare{ours},
			Success: []*pb.RequestOp{remove(t.key)},
		})
	}
	if err != nil {
		return err
	}
	e.reached(resp.Header.Revision)
	t.mu.Lock()
	t.open = 0 // there are no others: Leave was called, or Enqueue is still at it
	t.mu.Unlock()
	return confirmed(resp, nil)
}

// confirmed reads the answer to a deletion.
func confirmed(resp *pb.TxnResponse, err error) error {
	if err == nil && !resp.Succeeded {
		return fmt.Errorf("%w: etcd has no such key", driver.ErrGone)
	}
	return err
}

// giveBack returns the key for others to use: because it is known to be gone, or, if not,
// only when nothing of ours is or can come to be there.
func (t *ticket) giveBack(gone bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.kept || t.open > 0 || t.rev != 0 && !gone {
		return
	}
	t.session.slots.free(t.queue.marked(&t.request), t)
	t.kept = false
}
