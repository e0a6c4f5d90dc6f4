package etcdlock

import (
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hasplock/hasp/driver"
)

// Adopt takes over another session's key by putting it anew, with our id and on our lease.
// A key keeps its create revision however often it is put, and with it its place in the queue
// and its token; those who wait watch for its deletion, and sleep on. The key is called after
// the lease of its first owner, which has no meaning (see slots.go for that owner).
//
// First the entry is read, with those ahead of it: it must hold. What holds goes on to hold
// until it is deleted, so that is still true when the key is put, which is done only if it
// has not changed since it was read. In etcd's order of transactions then
//
//   - the end of the old session's lease, whether it expires or is revoked by Close, is before:
//     there is no such key. Or it is behind: etcd has taken the key from that lease with the put,
//     and leaves it alone. From here on it goes with our lease, and only with ours.
//   - another session's adoption is before: the key has another id. Or behind, and finds ours.
//   - a Leave or a publication of the old session's is before: the key has gone, or is read
//     again. Or it arrives behind, however late: it compares the mod revision, and finds that
//     the key is another's (ticket.isOurs).
//   - our own request arrives when Adopt has returned: the epoch has moved on (leave.go), or the
//     Leave that moves it comes behind, and deletes the key by our id.
//
// If the answer is lost, or says that there is no space (space.go), the next read finds our id
// at the key, or not.
//
// The road not taken is that we keep the old session's lease alive: it is that of all its other
// entries, which then would outlive it.
func (t *ticket) Adopt(ctx context.Context, id string, seq uint64) (driver.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return driver.Verdict{}, err
	}
	for full := error(nil); ; {
		kv, rev, err := t.offered(ctx, id, int64(seq))
		if full != nil && (err == nil || isGone(err)) {
			t.answered(nil) // that request is over, and this read tells what became of it
		}
		if err != nil {
			t.freeKey(false)
			return driver.Verdict{}, err
		}
		e, _ := t.queue().entry(kv)
		if e.ID == t.request.ID { // an earlier attempt has come through
			return t.adopted(e, kv.ModRevision, rev)
		}
		if full != nil {
			t.freeKey(false)
			return driver.Verdict{}, full
		}
		x, err := t.claim(kv, e.Value)
		if err != nil {
			return driver.Verdict{}, err
		}
		resp, err := t.session.txn(ctx, "take over the entry", x)
		t.answered(err)
		if isFull(err) {
			full = err
			continue
		}
		if err != nil {
			t.freeKey(false)
			return driver.Verdict{}, err
		}
		if resp.Succeeded {
			return t.adopted(e, resp.Header.Revision, resp.Header.Revision)
		}
		// The epoch has moved, or the key has changed: each time another request has succeeded.
	}
}

// offered reads the key that is to be adopted, if it is as it was described, or ours already.
func (t *ticket) offered(ctx context.Context, id string, seq int64) (kv *mvccpb.KeyValue, rev int64, err error) {
	s, r := t.session, &t.request
	queued := byAge(t.queue().all(), pb.RangeRequest_ASCEND, 0)
	queued.MaxCreateRevision = seq
	resp, err := s.txn(ctx, "look for the entry to take over", &pb.TxnRequest{
		Success: []*pb.RequestOp{get(s.epoch.key), read(queued)},
	})
	if err != nil {
		return nil, 0, err
	}
	if kv := only(found(resp, 0)); kv != nil {
		s.epoch.reached(kv.ModRevision)
	}
	none := fmt.Errorf("%w: no such entry to take over", driver.ErrGone)
	kvs := found(resp, 1).Kvs
	if len(kvs) == 0 {
		return nil, 0, none
	}
	last := len(kvs) - 1
	kv = kvs[last]
	e, ok := t.queue().entry(kv)
	switch held, _ := driver.Decide(t.queue().entries(kvs[:last]), e.Request); {
	case !ok, kv.CreateRevision != seq, !held, e.ID != id && e.ID != r.ID,
		e.Units != r.Units, e.Capacity != r.Capacity:
		return nil, 0, none
	}
	return kv, resp.Header.Revision, nil
}

// claim builds the transaction. What the entry publishes stays.
func (t *ticket) claim(kv *mvccpb.KeyValue, value []byte) (*pb.TxnRequest, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	epoch, err := t.sending()
	if err != nil {
		return nil, err
	}
	if !t.hasKey {
		t.session.slots.adopt(t)
		t.hasKey = true
	}
	r := t.request
	r.Value = value
	t.key, t.rewritten = string(kv.Key), &r
	return &pb.TxnRequest{
		Compare: []*pb.Compare{modifiedAt(t.key, kv.ModRevision), t.session.epoch.is(epoch)},
		Success: []*pb.RequestOp{put(t.key, encode(&r), t.session.lease)},
	}, nil
}

// adopted takes note that the key is ours.
func (t *ticket) adopted(e driver.Entry, mod, rev int64) (driver.Verdict, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rev, t.mod = int64(e.Seq), mod
	r := t.request
	r.Value = e.Value
	t.rewritten = &r
	t.view = view{rev: rev, complete: true}
	return t.verdict(), nil
}
