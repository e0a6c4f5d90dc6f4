package etcdlock

import (
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
// that the view was read at, or behind, says nothing new; a later one is remembered until a
// read is as late as it is.
type view struct {
	rev          int64 // of the read; what comes later is told by watches
	ahead        []driver.Entry
	keys         []string // of ahead
	watchedSince int64    // the latest revision at which a watch began
	depth        int32    // how many there were, if the read told, up to longQueue+1
	complete     bool     // no other entry was ahead; else there may be, older than these
	watchFailed  bool     // some watch is not established
	updates      map[string]keyUpdate
}

// keyUpdate is the news of a key since the read.
type keyUpdate struct {
	rev     int64 // of the latest message
	deleted int64 // when it was deleted, the latest time
	seq     uint64
	units   int64 // the least that the entry seq was said to have; 0: nothing was said
}

// stale says that a deletion may have been missed: one between the read and the begin of
// a watch, or while there was none.
func (v *view) stale() bool { return v.watchedSince > v.rev || v.watchFailed }

// replaceView replaces the view by an answer that lists deniers newest first. What messages have
// told of later revisions is taken out of it: there will be no second message. (A key that
// is made again, as etcd's own package does under a session, is behind us then.) The caller
// has mu.
func (t *ticket) replaceView(r *pb.RangeResponse, rev int64) {
	old := &t.view
	v := view{rev: rev, complete: !r.More, watchedSince: old.watchedSince, watchFailed: old.watchFailed}
	for _, kv := range slices.Backward(r.Kvs) {
		key := string(kv.Key)
		e, ok := t.queue().entry(kv)
		if !ok {
			continue
		}
		if n, told := old.updates[key]; told && !n.apply(&e) {
			continue
		}
		v.ahead, v.keys = append(v.ahead, e), append(v.keys, key)
	}
	for key, n := range old.updates {
		if n.rev > rev {
			v.note(key, n)
		}
	}
	t.view = v
}

// apply takes what was told of the entry's key out of the entry, and returns whether it is
// still there.
func (n *keyUpdate) apply(e *driver.Entry) bool {
	if n.units > 0 && n.seq == e.Seq {
		e.Units = min(e.Units, n.units)
	}
	return uint64(n.deleted) <= e.Seq // deleted before this entry had the key, or never
}

func (v *view) note(key string, n keyUpdate) {
	if v.updates == nil {
		v.updates = map[string]keyUpdate{}
	}
	v.updates[key] = n
}

// noteUpdate takes note of a message about a blocker's key, unless it is none.
func (t *ticket) noteUpdate(key string, rev int64, tell func(*keyUpdate)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := &t.view
	if t.left || rev <= v.rev {
		return
	}
	n := v.updates[key]
	n.rev = max(n.rev, rev)
	tell(&n)
	v.note(key, n)
	i := slices.Index(v.keys, key)
	if i < 0 {
		return
	}
	was := v.ahead[i].Units
	switch there := n.apply(&v.ahead[i]); {
	case !there:
		v.keys = slices.Delete(v.keys, i, i+1)
		v.ahead = slices.Delete(v.ahead, i, i+1)
	case v.ahead[i].Units == was:
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
	own := w == t.ownWatch
	lost := own && !t.left && rev > t.rev
	t.mu.Unlock()
	switch {
	case lost:
		t.keyLost()
	case !own:
		t.noteUpdate(w.key, rev, func(n *keyUpdate) { n.deleted = max(n.deleted, rev) })
	}
}

// changed is called when a blocker has become smaller, or has only published something.
// Entries never grow, so the least that is said of one is true.
func (t *ticket) changed(w *watch, now *mvccpb.KeyValue) {
	e, ok := t.queue().entry(now)
	if !ok {
		return
	}
	t.noteUpdate(w.key, now.ModRevision, func(n *keyUpdate) {
		if n.seq != e.Seq || n.units == 0 {
			n.seq, n.units = e.Seq, e.Units
		}
		n.units = min(n.units, e.Units)
	})
}

// seen takes what a read has found at the key of a watch at this revision for what the watch should
// have told. An entry that had the key before the one that is there now was deleted.
func (t *ticket) seen(w *watch, kv *mvccpb.KeyValue, rev int64) {
	if kv == nil {
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
	case t.left || rev <= t.view.rev: // the view is as new as the watch
	case w == t.ownWatch:
		t.session.watches.check(w)
	case !t.held:
		t.view.watchedSince = max(t.view.watchedSince, rev)
		t.signal.Notify()
	}
}

// watchFailed says that a watch could not be had, or has ended. There will be another attempt.
func (t *ticket) watchFailed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.held {
		t.view.watchFailed = true
		t.signal.Notify()
	}
}
