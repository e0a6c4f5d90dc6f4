package etcdlock

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hasplock/hasp/driver"
)

// A mutex or writer that enters, or looks who is ahead, is told one key: the newest before its
// own. To find that, etcd reads the whole queue, since it sorts by age: from its database with
// the values, and since 3.7 from the index in memory if only keys are asked for. Behind a
// thousand entries that is the larger part of the server's work.
//
// But such an answer does not tell an entry from a key without a lease, which is none. (3.7
// does not fill in the lease, older servers do.) So the lease must not decide, and a key that
// was read like this counts as an entry, whichever it is. That can only keep us waiting, for
// a key that nothing removes; it can never let us hold. What ends such a wait:
//
//   - A key that is not called after a lease is no entry of hasp's or etcd's own package. It
//     is left open what it is, and it is read again, with its value, before it is waited for.
//   - One that is called like an entry, and is none (a mirror of another cluster has such
//     keys), is found by a look at the blockers that have been in the way for one renewal, or two:
//     many in one read, and each once.
//   - A session that has met such a key reads values from then on.
//
// Entries that do not need the whole capacity read values always: they have to know the units
// of the others.

// byKeys is whether to ask for keys only.
func (t *ticket) byKeys() bool { return t.exclusive() && !t.session.leaseless.Load() }

// readEntry reads an entry from an answer that may have nothing but keys. ok is false for what is
// none; sure is false for a key of which the value must be read.
func (t *ticket) readEntry(kv *mvccpb.KeyValue, byKeys bool) (e driver.Entry, ok, sure bool) {
	q := t.queue()
	e, keyed := q.keyed(kv)
	switch {
	case !keyed:
		return e, false, true
	case byKeys:
		ok = afterLease(e.ID)
		return e, ok, ok
	}
	if e, ok = q.entry(kv); !ok {
		t.session.leaseless.Store(true)
	}
	return e, ok, true
}

// grown returns the listeners of the watches that have had them for one renewal, or two.
func (st *stream) grown() (list []listener) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, w := range st.watches {
		if w.to != nil && w.age < 2 {
			if w.age++; w.age == 2 {
				list = append(list, w.to)
			}
		}
	}
	return list
}

// doubts is called for a waiter whose blocker has been in the way for a while.
func (t *ticket) doubts() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.view.byKeys && !t.held && !t.left {
		t.session.keyWatch.confirm(t)
	}
}

// toConfirm is the key to be looked for: ours if we hold, else that of the blocker. If that has left
// since, and those ahead of it are being read, it is ours as well.
func (t *ticket) toConfirm() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.view.keys); n > 0 && !t.held {
		return t.view.keys[n-1]
	}
	return t.key
}

// blockerSeen notes what was found at the blocker's key.
func (t *ticket) blockerSeen(kv *mvccpb.KeyValue) {
	if kv == nil || kv.Lease != 0 {
		return // an entry, or one that has gone, of which the watch tells
	}
	t.session.leaseless.Store(true)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.view.watchFailed = true // to read again
	t.signal.Notify()
}

// newestAhead reads the deniers that are ahead, newest first.
func (t *ticket) newestAhead(limit int64, byKeys bool) *pb.RangeRequest {
	r := byAge(t.queue().deniers(&t.request), pb.RangeRequest_DESCEND, limit)
	r.KeysOnly = byKeys
	return r
}
