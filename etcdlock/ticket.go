package etcdlock

import (
	"context"
	"fmt"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/bell"
)

// ticket is one entry's key. How it enters is in this file, how it waits in wait.go, how
// it leaves in leave.go.
type ticket struct {
	session *session
	request driver.Request
	base    string    // of its queue
	bell    bell.Bell // for Wait

	mu    sync.Mutex
	key   string // one of the session's slots, ours while kept; or adopted
	put   []byte // the value that was put there
	open  int32  // requests to enter whose outcome we do not know; see epoch.go
	kept  bool
	left  bool // Leave was called: nothing may enter any more
	held  bool
	gone  bool  // the key was deleted, and not by us
	away  bool  // another session has adopted it
	rev   int64 // create revision of the key, the place in the queue; 0: not known to be there
	epoch int64 // in which our latest request to enter was made
	mod   int64 // mod revision; with what was put there: see rewrite.go
	now   content
	view  view
	own   *watch            // for the deletion of our key; see vigil.go
	ring  map[string]*watch // by key, for that of the blockers
}

func (t *ticket) queue() queue { return queue{name: t.request.Name, base: t.base} }

// Enqueue enters, or asks again if the place in the queue is known already.
func (t *ticket) Enqueue(ctx context.Context) (driver.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return driver.Verdict{}, err
	}
	if t.entered() {
		return t.look(ctx)
	}
	return t.enter(ctx)
}

// entered returns whether our key is known to be there, or to have been.
func (t *ticket) entered() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rev != 0
}

// enter puts the key in one transaction, unless it is there from an earlier attempt whose
// answer was lost. Most often nothing is in the way, and the answer says who is ahead.
func (t *ticket) enter(ctx context.Context) (driver.Verdict, error) {
	since := int64(0) // if not 0, the queue was read at this revision, and all that matters is what came after
	for {
		epoch, err := t.begin()
		if err != nil {
			return driver.Verdict{}, err
		}
		resp, err := t.session.txn(ctx, "enter the queue", t.entering(epoch, since))
		t.answered(err)
		if isFull(err) {
			if err = t.enteredFull(ctx, err); err == nil {
				return t.look(ctx)
			}
		}
		if err != nil {
			t.giveBack(false)
			return driver.Verdict{}, err
		}
		if resp.Succeeded {
			return t.placed(resp)
		}
		var busy *driver.Verdict
		switch since, busy, err = t.obstacle(ctx, resp); {
		case err != nil || busy != nil:
			return t.refuse(ctx, busy, err)
		case t.entered():
			return t.look(ctx)
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
		for _, alien := range q.aliens(r) {
			x.Compare = append(x.Compare, unleased(alien))
		}
	} else {
		x.Compare = append(x.Compare, noneSince(q.all(), since))
	}
	switch {
	case !r.NoWait:
		x.Success = append(x.Success, read(byAge(deniers, pb.RangeRequest_DESCEND, enough(r))))
	case since == 0:
		x.Compare = append(x.Compare, unleased(deniers))
		if !isReader(r) {
			deniers = q.all() // to see aliens as well, in the same read
		}
		// Oldest first, so that the answer to a refused try names a holder.
		x.Failure = append(x.Failure, read(byAge(deniers, pb.RangeRequest_ASCEND, enough(r))))
	}
	x.Success = append(x.Success, put(t.key, t.put, s.lease))
	return x
}

// begin notes a request to enter before it is sent, and the epoch it is made in.
func (t *ticket) begin() (epoch int64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if epoch, err = t.sending(); err != nil {
		return 0, err
	}
	if !t.kept {
		t.key, t.kept = t.session.slots.take(t.queue().marked(&t.request), t), true
		t.put = encode(&t.request)
	}
	return epoch, nil
}

// sending counts a request that puts our key, and returns the epoch it is to be made in.
// Leave sets left under the same lock: either it sees the request, or the request is not
// made. The caller has mu.
func (t *ticket) sending() (epoch int64, err error) {
	if t.left || t.gone || t.session.ctx.Err() != nil {
		return 0, fmt.Errorf("%w: the entry was given up", driver.ErrGone)
	}
	t.open++
	t.epoch = t.session.epoch.now()
	return t.epoch, nil
}

// answered notes that a request to enter has come to an end that we know. Its late
// duplicate is impossible: gRPC sends a request once.
func (t *ticket) answered(err error) {
	if err == nil || refused(err) {
		t.mu.Lock()
		t.open = max(t.open-1, 0) // withdraw may have settled them all
		t.mu.Unlock()
	}
}

// placed takes the answer to a transaction that put the key.
func (t *ticket) placed(resp *pb.TxnResponse) (driver.Verdict, error) {
	rev := resp.Header.Revision
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rev, t.mod = rev, rev
	if t.request.NoWait { // the comparisons have said so
		t.view = view{rev: rev, complete: true}
	} else {
		ahead := found(resp, 0)
		t.see(ahead, rev)
		t.view.depth = int32(min(ahead.Count, longQueue+1))
	}
	return t.verdict(), nil
}

// obstacle finds out why a transaction put nothing: because our key is there (then entered
// says so), because entries of another kind are (an error), because a try finds the lock
// taken (a verdict), or because the epoch has moved on. What remains is a comparison that
// cannot tell a key that is no entry from one that is, or permits that leave room from
// those that do not. The queue has then been read at the revision returned, and the next
// attempt demands only that nobody has entered since.
func (t *ticket) obstacle(ctx context.Context, resp *pb.TxnResponse) (since int64, busy *driver.Verdict, err error) {
	if len(resp.Responses) > 0 {
		seen := found(resp, 0)
		if _, busy, err = t.against(seen, resp.Header.Revision); err != nil || busy != nil || t.entered() {
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
	pure, busy, err := t.against(found(resp, 1), resp.Header.Revision)
	if pure && !t.request.NoWait {
		return 0, busy, err // whatever it was, it is over
	}
	return resp.Header.Revision, busy, err
}

// against judges what was read of the queue before we are in it. pure says that all keys
// are entries.
func (t *ticket) against(seen *pb.RangeResponse, rev int64) (pure bool, busy *driver.Verdict, err error) {
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

// refuse answers that the entry did not enter. If an earlier attempt of this ticket is
// still under way it must not enter later, when nobody knows of it any more.
func (t *ticket) refuse(ctx context.Context, busy *driver.Verdict, err error) (driver.Verdict, error) {
	t.mu.Lock()
	open := t.open > 0
	t.mu.Unlock()
	if err == nil && open {
		if err := t.withdraw(ctx); err != nil && !isGone(err) {
			return driver.Verdict{}, err
		}
	}
	t.giveBack(false)
	if err != nil {
		return driver.Verdict{}, err // the core calls Leave if an attempt went unanswered
	}
	return *busy, nil
}
