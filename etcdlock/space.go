package etcdlock

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// isFull returns whether etcd says that it has no space. It says so in two places, and the
// words are the same. Where a request comes in, it is refused and not done. But those that
// came in before the quota was crossed are applied in their order, and the one that finds it
// crossed is done all the same, as on every other member: only the answer is an error. So
// after this error a request may have been done or not. What is certain is that it is over,
// that it will not be done later; so one read tells the outcome.
//
// What entered is taken out again, so that the answer is true: it would be a lock for one caller in
// a store that refuses all that come behind. What else was done is kept.
func isFull(err error) bool { return errors.Is(err, rpctypes.ErrNoSpace) }

// undoFull deletes what a request to enter may have put that was answered with full. If this fails,
// or if we die before it, the request counts as one of unknown outcome: Enqueue finds the key, or
// Leave withdraws it, or the lease ends it.
func (t *ticket) undoFull(ctx context.Context, full error) error {
	if _, err := t.deleteKey(ctx); err != nil && !isGone(err) {
		return err
	}
	t.answered(nil)
	return full
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
