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
	// The second time with values, if the first was without. The last time without limit: when
	// what the answer had room for does not deny us, but is not all. That takes keys that are no
	// entries, or entries of several units of an otherwise shared lock.
	few := denierLimit(&t.request)
	for _, look := range []struct {
		limit  int64
		byKeys bool
	}{{few, true}, {few, false}, {0, false}} {
		if look.byKeys && !t.byKeys() {
			continue
		}
		t.mu.Lock()
		rev := t.rev
		t.view.watchFailed = false // before the request: what is told from here on counts again
		t.mu.Unlock()
		ahead := t.newestAhead(look.limit, look.byKeys)
		ahead.MaxCreateRevision = rev - 1
		resp, err := t.session.txn(ctx, "look who is ahead", &pb.TxnRequest{
			Compare: []*pb.Compare{createdAt(t.key, rev)},
			Success: []*pb.RequestOp{read(ahead)},
		})
		t.mu.Lock()
		if err != nil {
			t.view.watchFailed = true
			t.mu.Unlock()
			return driver.Verdict{}, err
		}
		if !resp.Succeeded {
			t.gone = true
			t.mu.Unlock()
			return driver.Verdict{}, fmt.Errorf("%w: etcd has no such key", driver.ErrGone)
		}
		t.replaceView(found(resp, 0), resp.Header.Revision, look.byKeys)
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
// If no Enqueue was answered our place is not known, and it asks by Enqueue. A read of those ahead would be one of those ahead of revision 0,
// of whom there are none, for as long as our key is not there: the lock would be granted beside its holder.
func (t *ticket) Wait(ctx context.Context) (driver.Verdict, error) {
	if !t.entered() {
		return t.Enqueue(ctx)
	}
	for {
		t.mu.Lock()
		if t.gone {
			t.mu.Unlock()
			return driver.Verdict{}, fmt.Errorf("%w: the entry was deleted", driver.ErrGone)
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
// If we may come to hold without reading again, our own key is watched, too, and its watch is
// asked for first. Were our key deleted before the last blocker is (an operator revokes our lease,
// say), that message mostly comes first, on the same stream. Not if the blocker's watch was a kept one,
// which tells before ours is established, or if the server is behind with one of the two: then we
// hold, and the deletion is found when ours is established (keyWatch.confirm), or told with the next message.
func (t *ticket) follow(keys []string) {
	st := t.session.watch
	if t.view.complete && t.ownWatch == nil {
		t.ownWatch = st.add(&watch{key: t.key, to: t}, t.view.rev)
	}
	from := int64(0)
	if t.view.depth > longQueue {
		from = t.view.rev + 1
	}
	for _, key := range keys {
		if t.blockerWatches[key] == nil {
			if t.blockerWatches == nil {
				t.blockerWatches = map[string]*watch{}
			}
			t.blockerWatches[key] = st.add(&watch{key: key, to: t, from: from, changes: !t.exclusive()}, t.view.rev)
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
			t.session.watch.release(w)
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
	if own && t.ownWatch != nil {
		off = append(off, t.ownWatch)
		t.ownWatch = nil
	}
	return off
}

// established and failed make the ticket a listener, with deleted and changed (view.go).

func (t *ticket) established(_ *watch, rev int64, again bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !again && rev <= t.view.rev || t.left {
		return // the view is as new as the watch
	}
	if t.held {
		t.session.keyWatch.confirm(t)
		return
	}
	if again { // revisions of before the break may be another history's; see session.checkRevision
		t.view.watchedSince, t.view.watchFailed = 0, true
	} else {
		t.view.watchedSince = max(t.view.watchedSince, rev)
	}
	t.signal.Notify()
}

func (t *ticket) failed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.held {
		t.view.watchFailed = true
		t.signal.Notify()
	}
}
