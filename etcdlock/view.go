package etcdlock

import (
	"math"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hasplock/hasp/driver"
)

// view is a waiter's knowledge of the entries ahead of it. Since no entry is ever inserted ahead,
// and none ahead ever grows, a view only says too much: an entry that it lacks is not there, if it
// was complete when it was read, and what was taken out of it is out for good.
//
// A view is put together from two sources, which may tell of the same thing in either order,
// and each of which may be behind the other:
//
//   - Reads. They are linearizable, and say at which revision they were made. The answer may
//     be on its way while messages overtake it.
//   - Messages of watches. A message can be late for any time: a member that lags begins a
//     watch at the revision that it has reached, and tells of all that it learns from then
//     on, however long ago the others did it. Keys are used again, so that may be the deletion
//     of an entry that had the key before the one that is in the view.
//
// So what decides is never the order of arrival, but the revision: a message about a revision
// that the view was read at, or behind, says nothing new. A later one is taken into the view, and
// if the answer to a read comes behind it that is older, the view is read again: there will be no
// second message. (The road not taken is to remember each message until a read is as late as it is.)
type view struct {
	rev      int64 // of the read; what comes later is told by watches
	ahead    []driver.Entry
	keys     []string // of ahead
	told     int64    // the latest revision of a message that was taken into it
	missed   int64    // the revision up to which something may be missing
	depth    int32    // how many there were, if the read told, up to longQueue+1
	complete bool     // no other entry was ahead; else there may be, older than these
}

// unwatched is view.missed while some watch is not established.
const unwatched = math.MaxInt64

// stale says that a deletion may have been missed: one between the read and the begin of a watch,
// or while there was none, or one that an older answer to a read has brought back.
func (v *view) stale() bool { return v.missed > v.rev }

// replaceView replaces the view by an answer that lists deniers newest first. The caller has mu.
func (t *ticket) replaceView(r *pb.RangeResponse, rev int64) {
	v := view{rev: rev, complete: !r.More, missed: max(t.view.missed, t.view.told)}
	for _, kv := range slices.Backward(r.Kvs) {
		if e, ok := t.queue().entry(kv); ok {
			v.ahead, v.keys = append(v.ahead, e), append(v.keys, string(kv.Key))
		}
	}
	t.view = v
}

// blockerChanged takes a message about a blocker's key into the view: that the entry which was
// there was deleted, or, if now is not nil, what it is now. Entries never grow, so the least that
// was said of one is true. What was made at the key later is behind us.
func (t *ticket) blockerChanged(key string, rev int64, now *driver.Entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := &t.view
	if t.left || rev <= v.rev {
		return
	}
	v.told = max(v.told, rev)
	i := slices.Index(v.keys, key)
	switch {
	case i < 0:
		return
	case now == nil:
		v.keys, v.ahead = slices.Delete(v.keys, i, i+1), slices.Delete(v.ahead, i, i+1)
	case now.Seq == v.ahead[i].Seq && now.Units < v.ahead[i].Units:
		v.ahead[i].Units = now.Units
	default:
		return // a publication, for which no one waits
	}
	t.signal.Notify()
}

// deleted is called at the end of a blocker, or of our own key. That one is ours since its
// create revision: what was deleted before was another's. (To take that for a loss would be
// worse than a lock lost: the key would stay, and keep all others out for as long as the
// session is kept alive.)
func (t *ticket) deleted(w *watch, rev int64) {
	t.mu.Lock()
	own, before := w == t.ownWatch, rev <= t.rev
	t.mu.Unlock()
	switch {
	case !own:
		t.blockerChanged(w.key, rev, nil)
	case !before && t.lost():
		t.session.gone(t.request.ID, errDeleted)
	}
}

// changed is called when a blocker has become smaller, or has only published something.
func (t *ticket) changed(w *watch, now *mvccpb.KeyValue) {
	if e, ok := t.queue().entry(now); ok {
		t.blockerChanged(w.key, now.ModRevision, &e)
	}
}

// seen takes what a read has found at the key of a watch at this revision for what the watch should
// have told. An entry that had the key before the one that is there now was deleted. So was ours if
// it is not there at the revision that made it: the store was put back, and others have used that
// revision.
func (t *ticket) seen(w *watch, kv *mvccpb.KeyValue, rev int64) {
	if kv == nil {
		t.mu.Lock()
		if w == t.ownWatch {
			rev++
		}
		t.mu.Unlock()
		t.deleted(w, rev)
		return
	}
	t.deleted(w, kv.CreateRevision-1)
	if w.changes {
		t.changed(w, kv)
	}
}

// established says that what happens after this revision will be told.
func (t *ticket) established(w *watch, rev int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.left || rev == t.view.rev: // the view is as new as the watch
	case w == t.ownWatch:
		// Also if the watch is older than our key: its member lags, or the store was put back before
		// the first stream was opened, and this read is the first to see it.
		t.session.watches.check(w)
	case rev > t.view.rev && !t.held:
		t.view.missed = max(t.view.missed, rev)
		t.signal.Notify()
	}
}

// watchFailed says that a watch could not be had, or has ended. There will be another attempt.
func (t *ticket) watchFailed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.held {
		t.view.missed = unwatched
		t.signal.Notify()
	}
}
