package etcdlock

import (
	"context"
	"fmt"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/hasplock/hasp/driver"
)

// noteTTL is how long the note about an eviction is kept. etcd remembers nothing of a
// name that has no entries, so it is not the name's own time that it could go by.
const noteTTL = 24 * time.Hour

// noteRefusals are refusals that may be caused by the note: a full quota forbids to put and to
// grant a lease, but not to delete; a role may reach no further than the entries of some names; and
// the lease may have been revoked. The eviction is then done without a note. An older one stays: it
// says of itself which entry it is about, and when.
var noteRefusals = []error{rpctypes.ErrNoSpace, rpctypes.ErrPermissionDenied, rpctypes.ErrLeaseNotFound}

// Evict removes an entry as it was read: by its key and mod revision, so that it does not take
// an entry from a session that adopts it meanwhile. If it has changed, it is read again. Its
// session learns of it by its own watch.
//
// The note is put in the same transaction, so that there is none without
// an eviction. The note has a separate lease, and etcd removes it also without
// us. Step by step:
//
//   - Nothing is granted before an entry was seen, so that an eviction without an entry leaves
//     nothing.
//   - If we die behind the grant, if its answer is lost, or if the entry goes meanwhile, a
//     lease without keys remains until it runs out. It is not revoked: after a comparison
//     that failed we cannot be sure that the client has not sent the transaction twice (see
//     Backend), and that the first has not put the note on this very lease.
//   - If the answer to the transaction is lost, it was done as a whole or not at all. Called
//     again, it finds the entry, or nothing; then LastEviction tells the outcome.
//   - Arriving late, it finds the mod revision changed, or evicts; or its lease has run out
//     by then, and etcd refuses all of it.
//   - If the answer is that there is no space, it may have been done as well (space.go). The note
//     tells, which is attached to a lease that only we know. (Another eviction may have replaced it
//     meanwhile, where there is no space: then we say that there is no such entry, which is true.)
//   - A newer note is put on another lease, and with that etcd takes the key from the
//     older one, which runs out later without any harm.
//
// The road not taken is to keep the older lease alive and to put the newer note on that: it
// may run out in between, for the sake of some hundred bytes for a day.
func (b *Backend) Evict(ctx context.Context, name, id, note string) error {
	q := b.queue(name)
	if note == "" {
		return b.evict(ctx, q, id)
	}
	if _, err := b.findKey(ctx, q, id); err != nil {
		return err
	}
	lease, err := b.grant(ctx, noteTTL)
	if err == nil {
		err = b.evict(ctx, q, id, put(b.evictionKey(name), []byte(note), lease.ID))
		if isFull(err) {
			kept, unknown := b.readNote(ctx, name)
			if unknown != nil || kept.GetLease() == lease.ID {
				return unknown
			}
		}
	}
	if isAny(err, noteRefusals) {
		return b.evict(ctx, q, id)
	}
	return err
}

// evict deletes the entry, and does also, in one transaction.
func (b *Backend) evict(ctx context.Context, q queue, id string, also ...*pb.RequestOp) error {
	for {
		kv, err := b.findKey(ctx, q, id)
		if err != nil {
			return err
		}
		key := string(kv.Key)
		resp, err := b.txn(ctx, patience, "evict", &pb.TxnRequest{
			Compare: []*pb.Compare{modifiedAt(key, kv.ModRevision)},
			Success: append([]*pb.RequestOp{remove(key)}, also...),
		})
		if err != nil || resp.Succeeded {
			return err
		}
	}
}

// findKey looks for the key of the entry with this id.
func (b *Backend) findKey(ctx context.Context, q queue, id string) (*mvccpb.KeyValue, error) {
	queued, err := b.read(ctx, "list the queue", byAge(q.all(), pb.RangeRequest_ASCEND, 0))
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(queued.Kvs, func(kv *mvccpb.KeyValue) bool {
		e, ok := q.entry(kv)
		return ok && e.ID == id
	})
	if i < 0 {
		return nil, fmt.Errorf("%w: no entry %q under %q", driver.ErrGone, id, q.name)
	}
	return queued.Kvs[i], nil
}

// LastEviction reads the note.
func (b *Backend) LastEviction(ctx context.Context, name string) (string, error) {
	kv, err := b.readNote(ctx, name)
	return string(kv.GetValue()), err
}

func (b *Backend) readNote(ctx context.Context, name string) (*mvccpb.KeyValue, error) {
	resp, err := b.read(ctx, "look for evictions", &pb.RangeRequest{Key: []byte(b.evictionKey(name))})
	if err != nil {
		return nil, err
	}
	return only(resp), nil
}

var _ driver.Evicter = (*Backend)(nil)
