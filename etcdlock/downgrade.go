package etcdlock

import (
	"bytes"
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hasplock/hasp/driver"
)

// content is the part of an entry's key and value that may change while it is held.
type content struct {
	units int64
	value []byte
}

// contentLocked returns the content of the entry now.
func (t *ticket) contentLocked() content {
	if t.rewritten != nil {
		return *t.rewritten
	}
	return content{t.request.Units, t.request.Value}
}

// Publish replaces the value of the entry.
func (t *ticket) Publish(ctx context.Context, value []byte) error {
	return t.rewrite(ctx, "publish", func(c *content) { c.value = value })
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
	return t.rewrite(ctx, "downgrade", func(c *content) { c.units = min(c.units, units) })
}

// rewrite replaces the content of the key, in one transaction most of the time. It compares
// the mod revision as well, so that a request whose answer was lost cannot arrive after a
// later one and undo it. Such a request may also have arrived; then the comparison fails,
// and the change is made to the present value of the key, so that a publication does not make an
// entry as large again as it was before a downgrade.
func (t *ticket) rewrite(ctx context.Context, doing string, change func(*content)) error {
	for {
		t.mu.Lock()
		rev, mod, c := t.rev, t.mod, t.contentLocked()
		t.mu.Unlock()
		if rev == 0 {
			return fmt.Errorf("%w: it never entered", driver.ErrGone)
		}
		change(&c)
		r := t.request
		r.Units, r.Value = c.units, c.value
		resp, err := t.session.txn(ctx, doing, &pb.TxnRequest{
			Compare: []*pb.Compare{createdAt(t.key, rev), modifiedAt(t.key, mod)},
			Success: []*pb.RequestOp{put(t.key, encode(&r), t.session.lease)},
			Failure: []*pb.RequestOp{get(t.key)},
		})
		switch {
		case isFull(err):
			return t.rewrittenFull(ctx, c, err)
		case err != nil:
			return err
		case resp.Succeeded:
			t.noteWritten(resp.Header.Revision, c)
			return nil
		}
		if _, err := t.noteContent(only(found(resp, 0))); err != nil {
			return err
		}
	}
}

// noteWritten notes the content of the key since this revision, if that is new.
func (t *ticket) noteWritten(mod int64, c content) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if mod >= t.mod {
		t.mod, t.rewritten = mod, &c
	}
}

// noteContent notes what is found at our key, and returns what we know of it then.
func (t *ticket) noteContent(kv *mvccpb.KeyValue) (content, error) {
	if !t.isOurs(kv) { // it has gone, or was handed on
		return content{}, fmt.Errorf("%w: etcd has no such key", driver.ErrGone)
	}
	t.mu.Lock()
	c := t.contentLocked()
	t.mu.Unlock()
	if e, ok := t.queue().entry(kv); ok {
		c = content{e.Units, e.Value}
	}
	t.noteWritten(kv.ModRevision, c)
	return c, nil
}

// rewrittenFull finds out whether the change was made to what we wanted. It returns full if not.
func (t *ticket) rewrittenFull(ctx context.Context, want content, full error) error {
	kv, _, err := t.readKey(ctx)
	if err != nil {
		return err
	}
	switch is, err := t.noteContent(kv); {
	case err != nil:
		return err
	case is.units != want.units || !bytes.Equal(is.value, want.value):
		return full
	}
	return nil
}
