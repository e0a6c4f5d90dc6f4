package etcdlock

import (
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/hasplock/hasp/driver"
)

// Enqueue enters, or asks again if the place in the queue is known already.
func (t *ticket) Enqueue(ctx context.Context) (driver.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return driver.Verdict{}, err
	}
	if t.entered() {
		return t.readAhead(ctx)
	}
	return t.enter(ctx)
}

// enter puts the key in one transaction, unless it is there from an earlier attempt whose
// answer was lost. Most often nothing is in the way, and the answer says who is ahead.
func (t *ticket) enter(ctx context.Context) (driver.Verdict, error) {
	since := int64(0) // if not 0, the queue was read at this revision, and what came later matters
	for {
		epoch, err := t.begin()
		if err != nil {
			return driver.Verdict{}, err
		}
		resp, err := t.session.enters.txn(ctx, "enter the queue", t.request.Name, t.entering(epoch, since))
		if err != nil || !resp.Succeeded { // else enqueued notes it, in one step with the place
			t.answered(err)
		}
		if isFull(err) {
			err = t.undoFull(ctx, err)
		}
		if err != nil {
			t.freeKey(false)
			return driver.Verdict{}, err
		}
		if resp.Succeeded {
			return t.enqueued(resp)
		}
		var busy *driver.Verdict
		switch since, busy, err = t.findObstacle(ctx, resp); {
		case err != nil || busy != nil:
			return t.notEntered(ctx, busy, err)
		case t.entered():
			return t.readAhead(ctx)
		}
	}
}

// entering builds the transaction. It reads those ahead before it puts the key, so that
// the answer does not carry our own. If it fails, a try is told at once who is there.
func (t *ticket) entering(epoch, since int64) *pb.TxnRequest {
	r, q, s := &t.request, t.queue(), t.session
	deniers := q.deniers(r)
	x := &pb.TxnRequest{Compare: []*pb.Compare{createdAt(t.key, 0), s.epoch.is(epoch)}}
	if since == 0 {
		for _, other := range q.otherKinds(r) {
			x.Compare = append(x.Compare, unleased(other))
		}
	} else {
		x.Compare = append(x.Compare, noneSince(q.all(), since))
	}
	switch {
	case !r.NoWait:
		x.Success = append(x.Success, read(byAge(deniers, pb.RangeRequest_DESCEND, denierLimit(r))))
	case since == 0:
		x.Compare = append(x.Compare, unleased(deniers))
		if !isReader(r) {
			deniers = q.all() // to see other kinds as well, in the same read
		}
		// Oldest first, so that the answer to a refused try names a holder.
		x.Failure = append(x.Failure, read(byAge(deniers, pb.RangeRequest_ASCEND, denierLimit(r))))
	}
	x.Success = append(x.Success, put(t.key, encode(r), s.lease))
	return x
}

// begin notes a request to enter before it is sent, and the epoch it is made in.
func (t *ticket) begin() (epoch int64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if epoch, err = t.sending(); err != nil {
		return 0, err
	}
	if !t.hasKey {
		t.key, t.hasKey = t.session.slots.take(t), true
	}
	return epoch, nil
}

// sending counts a request that puts our key, and returns the epoch it is to be made in.
// Leave sets left under the same lock: either it sees the request, or the request is not
// made. The caller has mu.
func (t *ticket) sending() (epoch int64, err error) {
	if t.left || t.session.ctx.Err() != nil {
		return 0, fmt.Errorf("%w: the entry has left", driver.ErrGone)
	}
	t.unanswered++
	t.epoch = t.session.epoch.now()
	return t.epoch, nil
}

// answered notes that a request to enter has come to an end that we know. Its late
// duplicate is impossible: gRPC sends a request once.
func (t *ticket) answered(err error) {
	if err == nil || refused(err) {
		t.mu.Lock()
		t.unanswered = max(t.unanswered-1, 0) // withdraw may have settled them all
		t.mu.Unlock()
	}
}

// enqueued takes the answer to a transaction that put the key.
func (t *ticket) enqueued(resp *pb.TxnResponse) (driver.Verdict, error) {
	rev := resp.Header.Revision
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rev, t.mod = rev, rev
	// See answered. A Leave that comes before this step withdraws.
	t.unanswered = max(t.unanswered-1, 0)
	if t.request.NoWait { // the comparisons have said so
		t.view = view{rev: rev, complete: true}
	} else {
		ahead := found(resp, 0)
		t.replaceView(ahead, rev)
		t.view.depth = int32(min(ahead.Count, longQueue+1))
	}
	return t.verdict(), nil
}

// findObstacle finds out why a transaction put nothing: because our key is there (then entered
// says so), because entries of another kind are (an error), because a try finds the lock
// taken (a verdict), or because the epoch has moved on. What remains is a comparison that
// cannot tell a key that is no entry from one that is, or permits that leave room from
// those that do not. The queue has then been read at the revision returned, and the next
// attempt demands only that no entry has come since.
func (t *ticket) findObstacle(ctx context.Context, resp *pb.TxnResponse) (since int64, busy *driver.Verdict, err error) {
	if len(resp.Responses) > 0 {
		seen := found(resp, 0)
		if _, busy, err = t.checkQueue(seen, resp.Header.Revision); err != nil || busy != nil || t.entered() {
			return 0, busy, err
		}
		if !seen.More && !isReader(&t.request) {
			return resp.Header.Revision, nil, nil
		}
	}
	s := t.session
	resp, err = s.txn(ctx, "look who is there", &pb.TxnRequest{
		Success: []*pb.RequestOp{get(s.epoch.key), read(byAge(t.queue().all(), pb.RangeRequest_ASCEND, 0))},
	})
	if err != nil {
		return 0, nil, err
	}
	if kv := only(found(resp, 0)); kv != nil {
		s.epoch.reached(kv.ModRevision)
	}
	pure, busy, err := t.checkQueue(found(resp, 1), resp.Header.Revision)
	if pure && !t.request.NoWait {
		return 0, busy, err // the obstacle has gone
	}
	return resp.Header.Revision, busy, err
}

// checkQueue decides by what was read of the queue before we are in it. pure says that all keys
// are entries.
func (t *ticket) checkQueue(seen *pb.RangeResponse, rev int64) (pure bool, busy *driver.Verdict, err error) {
	for _, kv := range seen.Kvs {
		if string(kv.Key) == t.key {
			t.mu.Lock()
			t.rev, t.mod, t.view = kv.CreateRevision, kv.ModRevision, view{rev: rev}
			t.mu.Unlock()
			return true, nil, nil
		}
	}
	ahead := t.queue().entries(seen.Kvs)
	if err := driver.CheckKind(ahead, t.request); err != nil {
		return true, nil, err
	}
	if held, _ := driver.Decide(ahead, t.request); !held && t.request.NoWait {
		busy = &driver.Verdict{Holder: ahead[0].Owner}
	}
	return len(ahead) == len(seen.Kvs), busy, nil
}

// notEntered answers that the entry did not enter. If an earlier attempt of this ticket is
// still under way it must not enter later, when the core does not know of it any more.
func (t *ticket) notEntered(ctx context.Context, busy *driver.Verdict, err error) (driver.Verdict, error) {
	t.mu.Lock()
	open := t.unanswered > 0
	t.mu.Unlock()
	if err == nil && open {
		if err := t.withdraw(ctx); err != nil && !isGone(err) {
			return driver.Verdict{}, err
		}
	}
	t.freeKey(false)
	if err != nil {
		return driver.Verdict{}, err // the core calls Leave if an attempt went unanswered
	}
	return *busy, nil
}
