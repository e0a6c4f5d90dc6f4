package etcdlock

import (
	"fmt"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A watch that the server does not keep must not affect the thousands
// on the same stream. There are three reasons for it:
//
//   - Its revision has been compacted, whether it was to begin there or has fallen so far
//     behind. It begins anew, now.
//   - The user may not read that key (any more). It is asked for again, with its own pause
//     that grows: permissions come back as they go.
//   - The stream's token has expired. That concerns all the others, too: only a new stream
//     gets a new token. Older servers say of this that permission is denied. So a stream that
//     was open for a while ends with the first refusal of a watch that was not refused
//     before; if it was not the token, the watch is refused again, and alone then.

const (
	refusedPause = time.Second // the shortest for a refused watch
	refusedMost  = 30 * time.Second
	freshToken   = 5 * time.Second // a stream that is younger has a good one
)

// watchOf returns the watch that a message is for, or nil if it was dropped. A refusal does
// not say whose it is; but the server answers requests to create in their order. The caller
// has st.mu.
func (st *stream) watchOf(resp *pb.WatchResponse) *watch {
	id := resp.WatchId
	if resp.Created && len(st.asked) > 0 {
		if id == clientv3.InvalidWatchID {
			id = st.asked[0]
		}
		if i := slices.Index(st.asked, id); i == 0 {
			st.asked = st.asked[1:] // nearly always
		} else if i > 0 {
			st.asked = slices.Delete(st.asked, i, i+1) // something in between has changed the order
		}
	}
	return st.watches[id]
}

// refused deals with a watch that the server has cancelled. An error ends the stream.
func (st *stream) refused(w *watch, resp *pb.WatchResponse) error {
	if st.refusedKept(w) {
		return nil // no listener misses it
	}
	if resp.CompactRevision != 0 {
		st.again(w)
		return nil
	}
	err := fmt.Errorf("watch refused: %s", resp.CancelReason)
	if !strings.Contains(resp.CancelReason, rpctypes.ErrPermissionDenied.Error()) {
		return err
	}
	st.mu.Lock()
	w.refusals = min(w.refusals+1, 6) // no pause is longer from there on
	pause := min(refusedPause<<(w.refusals-1), refusedMost)
	alone := w.refusals > 1 || time.Since(st.began) < freshToken
	w.paused, w.since = alone, 0
	to := w.to
	st.mu.Unlock()
	if !alone {
		return err
	}
	if to != nil {
		to.failed()
	}
	time.AfterFunc(pause, func() { st.again(w) })
	return nil
}

// again asks for a watch that the server does not keep, as of now, unless it was dropped
// meanwhile. It gets a new id: the server may still know the old one.
func (st *stream) again(w *watch) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.watches[w.id] != w {
		return
	}
	st.forget(w)
	w.from, w.since, w.paused = 0, 0, false
	st.begin(w)
}
