package etcdlock

import (
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/hasplock/hasp/driver"
)

// readAhead reads those ahead of us, and that we are there ourselves, in one linearizable
// transaction.
func (t *ticket) readAhead(ctx context.Context) (driver.Verdict, error) {
	// The second time without limit: when what the answer had room for does not deny us, but is not
	// all. That takes keys that are no entries, or entries of several units of an otherwise shared
	// lock.
	for _, limit := range []int64{denierLimit(&t.request), 0} {
		t.mu.Lock()
		rev := t.rev
		if t.view.missed == unwatched {
			t.view.missed = 0 // before the request: what is told from here on counts again
		}
		t.mu.Unlock()
		ahead := byAge(t.queue().deniers(&t.request), pb.RangeRequest_DESCEND, limit)
		ahead.MaxCreateRevision = rev - 1
		resp, err := t.session.txn(ctx, "look who is ahead", &pb.TxnRequest{
			Compare: []*pb.Compare{createdAt(t.key, rev)},
			Success: []*pb.RequestOp{read(ahead)},
		})
		t.mu.Lock()
		if err != nil {
			t.view.missed = unwatched
			t.mu.Unlock()
			return driver.Verdict{}, err
		}
		if !resp.Succeeded {
			t.mu.Unlock()
			t.lost()
			return driver.Verdict{}, errDeleted
		}
		t.replaceView(found(resp, 0), resp.Header.Revision)
		if _, sure, _ := t.decide(); sure {
			v := t.verdict()
			t.mu.Unlock()
			return v, nil
		}
		t.mu.Unlock()
	}
	return driver.Verdict{}, fmt.Errorf("etcd: an unlimited read was cut short")
}

// Wait watches the blockers, and decides by what it is told. It reads only when it must:
// when something may have happened before the watch was established, or when the blockers are gone
// and the view did not reach to the front of the queue. A mutex that waits behind its
// holder alone is granted with the message that the holder has left.
//
// If no Enqueue was answered our place is not known, and it asks by Enqueue. A read of those ahead
// would be one of those ahead of revision 0, of whom there are none, for as long as our key is not
// there: the lock would be granted beside its holder.
func (t *ticket) Wait(ctx context.Context) (driver.Verdict, error) {
	if !t.entered() {
		return t.Enqueue(ctx)
	}
	for {
		t.mu.Lock()
		if t.left {
			t.mu.Unlock()
			return driver.Verdict{}, errDeleted
		}
		held, sure, blockers := t.decide()
		stale := t.view.stale()
		if held && sure && !stale {
			v := t.verdict()
			t.mu.Unlock()
			return v, nil
		}
		look := stale || held
		if !look {
			t.follow(blockers)
		}
		t.mu.Unlock()
		if look {
			if v, err := t.readAhead(ctx); err != nil || v.Held {
				return v, err
			}
			continue
		}
		select {
		case <-t.signal.C():
		case <-ctx.Done():
			return driver.Verdict{}, ctx.Err()
		case <-t.session.ctx.Done():
			return driver.Verdict{}, fmt.Errorf("%w: the session was closed", driver.ErrGone)
		}
	}
}

// longQueue is a number of entries that takes longer to be served than the 100 ms for
// which etcd may delay a watch that begins in the past. Behind so many, the read that a
// watch from "now" on may need is saved.
const longQueue = 50

// exclusive is whether the entry waits for all of the capacity. Then it must outwait
// all those ahead, and need not be told that one of them has become smaller, or has
// published something.
func (t *ticket) exclusive() bool { return t.request.Units == t.request.Capacity }

// follow watches exactly these keys. The caller has mu.
//
// Our own key is watched, too, when we have waited for a while. Were it deleted before the last
// blocker's is (an operator revokes our lease, say), that is mostly told first. Not if both happen
// at once: then we hold, and are told with the next message.
func (t *ticket) follow(keys []string) {
	t.watchOwn()
	from := int64(0)
	if t.view.depth > longQueue {
		from = t.view.rev + 1
	}
	for _, key := range keys {
		if t.blockerWatches[key] == nil {
			if t.blockerWatches == nil {
				t.blockerWatches = map[string]*watch{}
			}
			t.blockerWatches[key] = t.session.watches.begin(&watch{key: key, to: t, from: from, changes: !t.exclusive()}, t.view.rev)
		}
	}
	if len(t.blockerWatches) > len(keys) {
		t.unfollow(keys)
	}
}

// unfollow ends the watches of all keys but these, which may be as many as a semaphore has
// permits: hence the set. The caller has mu.
func (t *ticket) unfollow(but []string) {
	wanted := make(map[string]bool, len(but))
	for _, key := range but {
		wanted[key] = true
	}
	for key, w := range t.blockerWatches {
		if !wanted[key] {
			t.session.watches.release(w)
			delete(t.blockerWatches, key)
		}
	}
}

// unwatch takes the watches off the ticket, for the caller to release; that of our own key
// only if asked. The caller has mu.
func (t *ticket) unwatch(own bool) (off []*watch) {
	for _, w := range t.blockerWatches {
		off = append(off, w)
	}
	t.blockerWatches = nil
	if own && t.ownDue != nil {
		t.ownDue.Stop()
	}
	if own && t.ownWatch != nil {
		off = append(off, t.ownWatch)
		t.ownWatch = nil
	}
	return off
}
