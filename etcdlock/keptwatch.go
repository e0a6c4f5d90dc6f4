package etcdlock

// When an entry comes to hold, or leaves, its watches have done what they were for. Those who
// lock a name again and again stand behind the same client each time, and that client's key is
// the same each time (slots.go). So a watch is kept for the next entry that wants it. That saves
// the message that would end it, the one that would begin the next, and the read that a watch
// from "now" on often needs: of five messages for a contended acquisition three remain.
//
// A kept watch tells the next listener all that it must know:
//
//   - The server tells of every deletion after w.since, once, to the listener of the time. The
//     new one has read the key at the revision known. If since is later, a deletion may have
//     come in between: then the watch is not taken.
//   - What was told before the new listener came, to the one before it or to none, is in w.told.
//     If that is later than known, the news was missed: then the watch is not taken either. So
//     it is where a message overtakes the answer to the read. A message that is under way to
//     the listener before was noted first (dispatch); that listener has left, or ignores it.
//   - A deletion up to known, told late by a member that lags, is of an earlier use of the key.
//     The view passes over it by its revision, whenever the watch began (view.go).
//   - A key that is deleted and made again is, by these rules, seen anew by the read, or told of.
//     What moves an entry to another lease, or makes it smaller, deletes nothing.
//   - When the stream ends, what was kept ends with it. So does a watch that the server
//     refuses, or that has fallen behind a compaction. One that was asked for on the stream
//     and not established yet is established for the listener that it then has.
//
// Where one of these fails, a watch is begun "now", and says whether more has to be read, as
// the first one did.

const (
	// mostKept bounds what a session keeps. Beyond it any is ended, which costs no more than
	// to keep none.
	mostKept = 64

	// A kept watch costs a message for each use of the key that no entry of ours waits for. So
	// it is ended after mostIdle of these, and a renewal counts as idleRenewal of them.
	mostIdle    = 4
	idleRenewal = 2
)

// takeKept returns the kept watch of w's key for w's listener, if there is one that has told,
// or will tell, all that happened after the revision known. The caller has st.mu.
//
// Those that tell of changes are for readers and permits, and are not kept: a change is told by
// its content, which a note of its revision does not stand for.
func (st *stream) takeKept(w *watch, known int64) *watch {
	k := st.kept[w.key]
	if k == nil || w.changes {
		return nil
	}
	delete(st.kept, k.key)
	if max(k.since, k.told) > known {
		st.forget(k)
		return nil
	}
	k.to, k.idle, k.age = w.to, 0, 0
	return k
}

// release ends a watch for its listener, which is not called any more, but for a call that is under
// way.
func (st *stream) release(w *watch) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.watches[w.id] != w {
		return
	}
	if st.up == nil || w.changes || w.refusals > 0 || st.kept[w.key] != nil {
		st.forget(w)
		return
	}
	if len(st.kept) >= mostKept {
		for _, k := range st.kept {
			st.endKept(k)
			break
		}
	}
	w.to, w.idle, w.age = nil, 0, 0
	st.kept[w.key] = w
}

// toldNoListener counts what a kept watch tells while none listens. The caller has st.mu.
func (st *stream) toldNoListener(w *watch, n int) {
	if w.idle = uint8(min(int(w.idle)+n, mostIdle)); w.idle == mostIdle {
		st.endKept(w)
	}
}

// ageKept is called with each renewal. The caller has st.mu.
func (st *stream) ageKept() {
	for _, w := range st.kept {
		st.toldNoListener(w, idleRenewal)
	}
}

// endKept ends a watch that is kept. The caller has st.mu.
func (st *stream) endKept(w *watch) {
	delete(st.kept, w.key)
	st.forget(w)
}

// forgetKept is called when the stream has ended. The caller has st.mu.
func (st *stream) forgetKept() {
	for _, w := range st.kept {
		st.endKept(w)
	}
}

// refusedKept ends a watch that the server has cancelled, if no listener misses it.
func (st *stream) refusedKept(w *watch) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if w.to != nil {
		return false
	}
	st.endKept(w)
	return true
}
