package etcdlock

import (
	"bytes"
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hasplock/hasp/driver"
)

// Publish replaces the value of the entry.
func (t *ticket) Publish(ctx context.Context, value []byte) error {
	return t.rewrite(ctx, "publish", func(r *driver.Request) { r.Value = value })
}

// Downgrade makes the held entry smaller. The key stays, and with it its create revision,
// which is the place in the queue and the token; so it stays among the keys of writers, and
// its value alone says that it has become less. Readers read those keys for the writer in
// their way, and see it. Those that wait already are told by their watch on the key, as of
// a deletion (see ticket.changed).
//
// The road not taken is to delete the key and make one among the readers': that is another
// place, behind all waiters.
func (t *ticket) Downgrade(ctx context.Context, units int64) error {
	return t.rewrite(ctx, "downgrade", func(r *driver.Request) { r.Units = min(r.Units, units) })
}

// rewrite replaces the content of the key, in one transaction most of the time. It compares
// the mod revision as well, so that a request whose answer was lost cannot arrive after a
// later one and undo it. Such a request may also have arrived; then the comparison fails,
// and the change is made to the present value of the key, so that a publication does not make an
// entry as large again as it was before a downgrade.
//
// If the answer is that there is no space, it may have been done (space.go): the key tells.
func (t *ticket) rewrite(ctx context.Context, doing string, change func(*driver.Request)) error {
	for {
		t.mu.Lock()
		rev, mod, held, r := t.rev, t.mod, t.held, *t.current()
		t.mu.Unlock()
		if !held { // what waits would hold beside those ahead of it, if it became smaller
			return fmt.Errorf("%w: it does not hold", driver.ErrGone)
		}
		change(&r)
		there := []*pb.RequestOp{get(t.key)}
		resp, full := t.session.txn(ctx, doing, &pb.TxnRequest{
			Compare: []*pb.Compare{createdAt(t.key, rev), modifiedAt(t.key, mod)},
			Success: []*pb.RequestOp{put(t.key, encode(&r), t.session.lease)},
			Failure: there,
		})
		switch {
		case full == nil && resp.Succeeded:
			t.noteWritten(resp.Header.Revision, &r)
			return nil
		case isFull(full):
			var err error
			if resp, err = t.session.txn(ctx, "see what became of it", &pb.TxnRequest{Success: there}); err != nil {
				return err
			}
		case full != nil:
			return full
		}
		now, err := t.noteContent(only(found(resp, 0)))
		switch {
		case err != nil:
			return err
		case full != nil && now.Units == r.Units && bytes.Equal(now.Value, r.Value):
			return nil
		case full != nil:
			return full
		}
	}
}

// noteWritten notes the content of the key since this revision, if that is new.
func (t *ticket) noteWritten(mod int64, r *driver.Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if mod >= t.mod {
		t.mod, t.rewritten = mod, r
	}
}

// noteContent notes what is found at our key, and returns what we know of it then.
func (t *ticket) noteContent(kv *mvccpb.KeyValue) (*driver.Request, error) {
	if !t.isOurs(kv) { // it has gone, or was handed on
		return nil, fmt.Errorf("%w: etcd has no such key", driver.ErrGone)
	}
	t.mu.Lock()
	r := *t.current()
	t.mu.Unlock()
	if e, ok := t.queue().entry(kv); ok {
		r.Units, r.Value = e.Units, e.Value
	}
	t.noteWritten(kv.ModRevision, &r)
	return &r, nil
}
