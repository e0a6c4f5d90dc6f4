package etcdlock

import (
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/hasplock/hasp/driver"
)

// judge decides by the view. sure is false if the answer "held" needs a complete one. A
// "no" is always sure: some of those ahead deny us, whoever else is there.
//
// Of the blockers, one that denies us alone is enough to watch: while it stays, it does not
// matter who behind it leaves. So a reader watches the writer, and not the readers between.
func (t *ticket) judge() (held, sure bool, blockers []string) {
	held, by := driver.Decide(t.view.ahead, t.request)
	blockers = t.view.keys[len(t.view.keys)-len(by):]
	if len(by) > 0 && by[0].Units > t.request.Capacity-t.request.Units {
		blockers = blockers[:1]
	}
	return held, !held || t.view.complete, blockers
}

// verdict is the answer by the view, which must be sure. The caller has mu.
func (t *ticket) verdict() driver.Verdict {
	if held, sure, _ := t.judge(); held && sure {
		t.hold()
		return driver.Verdict{Held: true, Token: uint64(t.rev)}
	}
	v := driver.Verdict{}
	if len(t.view.ahead) > 0 {
		v.Holder = t.view.ahead[0].Owner
	}
	return v
}

// look reads those ahead of us, and that we are there ourselves, in one linearizable
// transaction.
func (t *ticket) look(ctx context.Context) (driver.Verdict, error) {
	r := &t.request
	// The second time without limit: when what the first answer had room for does not deny
	// us, but is not all. That takes keys that are no entries, or entries of several units
	// of an otherwise shared lock.
	for _, limit := range []int64{enough(r), 0} {
		t.mu.Lock()
		rev := t.rev
		t.view.deaf = false // before the request: what is told from here on counts again
		t.mu.Unlock()
		ahead := byAge(t.queue().deniers(r), pb.RangeRequest_DESCEND, limit)
		ahead.MaxCreateRevision = rev - 1
		resp, err := t.session.txn(ctx, "look who is ahead", &pb.TxnRequest{
			Compare: []*pb.Compare{createdAt(t.key, rev)},
			Success: []*pb.RequestOp{read(ahead)},
		})
		t.mu.Lock()
		if err != nil {
			t.view.deaf = true
			t.mu.Unlock()
			return driver.Verdict{}, err
		}
		if !resp.Succeeded {
			t.gone = true
			t.mu.Unlock()
			return driver.Verdict{}, fmt.Errorf("%w: etcd has no such key", driver.ErrGone)
		}
		t.see(found(resp, 0), resp.Header.Revision)
		if _, sure, _ := t.judge(); sure {
			v := t.verdict()
			t.mu.Unlock()
			return v, nil
		}
		t.mu.Unlock()
	}
	return driver.Verdict{}, fmt.Errorf("etcd: an unlimited read was cut short")
}

// Wait watches the blockers, and decides by what it is told. It reads only when it must:
// when something may have happened before the watch stood, or when the blockers are gone
// and the view did not reach to the front of the queue. A mutex that waits behind its
// holder alone is granted with the message that the holder has left.
func (t *ticket) Wait(ctx context.Context) (driver.Verdict, error) {
	for {
		t.mu.Lock()
		if t.gone {
			t.mu.Unlock()
			return driver.Verdict{}, fmt.Errorf("%w: the entry was deleted", driver.ErrGone)
		}
		held, sure, blockers := t.judge()
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
			if v, err := t.look(ctx); err != nil || v.Held {
				return v, err
			}
			continue
		}
		select {
		case <-t.bell.Rings():
		case <-ctx.Done():
			return driver.Verdict{}, ctx.Err()
		case <-t.session.ctx.Done():
			return driver.Verdict{}, fmt.Errorf("%w: the session was closed", driver.ErrGone)
		}
	}
}

// longQueue is a number of entries that takes longer to be served than the 100 ms for
// which etcd may delay a watch that begins in the past. Behind so many, the look that a
// watch from "now" on may need is saved.
const longQueue = 50

// exclusive is whether the entry waits for all of the capacity. Then it must outwait
// whoever is ahead, and needs not be told that one of them has become smaller, or has
// published something.
func (t *ticket) exclusive() bool { return t.request.Units == t.request.Capacity }

// follow watches exactly these keys. The caller has mu.
//
// If we may come to hold without reading again, our own key is watched, too, and its watch
// is set up first: were it deleted before the last blocker is (somebody revokes our lease,
// say), the message comes first on the same stream.
func (t *ticket) follow(keys []string) {
	st := t.session.watch
	if t.view.complete && t.own == nil {
		t.own = st.add(&watch{key: t.key, to: t})
	}
	from := int64(0)
	if t.view.depth > longQueue {
		from = t.view.rev + 1
	}
	for _, key := range keys {
		if t.ring[key] == nil {
			if t.ring == nil {
				t.ring = map[string]*watch{}
			}
			t.ring[key] = st.add(&watch{key: key, to: t, from: from, changes: !t.exclusive()})
		}
	}
	if len(t.ring) > len(keys) {
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
	for key, w := range t.ring {
		if !wanted[key] {
			t.session.watch.drop(w)
			delete(t.ring, key)
		}
	}
}

// unwatch takes the watches off the ticket, for the caller to drop; that of our own key
// only if asked. The caller has mu.
func (t *ticket) unwatch(own bool) (dropped []*watch) {
	for _, w := range t.ring {
		dropped = append(dropped, w)
	}
	t.ring = nil
	if own && t.own != nil {
		dropped = append(dropped, t.own)
		t.own = nil
	}
	return dropped
}

// hold is called when the entry begins to hold, and when it is asked again. The caller
// has mu.
func (t *ticket) hold() {
	for _, w := range t.unwatch(false) {
		t.session.watch.drop(w)
	}
	t.view.ahead, t.view.keys, t.view.news = nil, nil, nil
	t.put = nil // 200 bytes for each held lock; from now on the create revision tells our key
	if !t.held && t.own == nil {
		t.session.vigil.begin(t)
	}
	t.held = true
}

// standing and deaf make the ticket a listener, with deleted and changed (view.go).

func (t *ticket) standing(_ *watch, rev int64, again bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !again && rev <= t.view.rev || t.left {
		return // the view is as new as the watch
	}
	if t.held {
		t.session.vigil.doubt(t)
		return
	}
	if again { // revisions of before the break may be another history's; see restored.go
		t.view.watched, t.view.deaf = 0, true
	} else {
		t.view.watched = max(t.view.watched, rev)
	}
	t.bell.Ring()
}

func (t *ticket) deaf(*watch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.held {
		t.view.deaf = true
		t.bell.Ring()
	}
}

// lost is called when our key is found deleted by somebody else.
func (t *ticket) lost() {
	t.mu.Lock()
	t.gone = true
	left := t.left
	t.bell.Ring()
	t.mu.Unlock()
	t.giveBack(true)
	if !left {
		t.session.gone(t.request.ID, fmt.Errorf("%w: its key was deleted", driver.ErrGone))
	}
}
