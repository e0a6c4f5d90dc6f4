package etcdlock

import (
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// A watch is not the only way to learn of what it is for, as a message may fail to come: a watch
// that begins "now" tells nothing of what was before; `etcd grpc-proxy` is silent about a watch
// that it has lost; a member may hang, or be put back to an earlier state. So keys are also looked
// for, many in one read: that of an entry of ours when its watch is established; and all of them
// with every second renewal, and when a stream had to be opened anew. What is found counts as what
// the watch should have told.

// check has the key of a watch looked for in the background.
func (ws *watches) check(w *watch) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.unchecked = append(ws.unchecked, w)
	ws.look.Notify()
}

// renewed is called with each renewal.
func (ws *watches) renewed() {
	ws.mu.Lock()
	for _, w := range ws.kept {
		ws.addIdle(w, idleRenewal)
	}
	ws.renewals++
	check := ws.renewals%2 == 0
	ws.mu.Unlock()
	if check {
		ws.checkAll()
	}
}

// checkAll has the keys of all watches looked for that are not kept. A look that is under way goes on
// with all of them: what it has read may be older than the reason for this one.
func (ws *watches) checkAll() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.unchecked = nil
	for w := range ws.all {
		if w.to != nil {
			ws.unchecked = append(ws.unchecked, w)
		}
	}
	ws.look.Notify()
}

// checkLoop looks for keys until the session is closed.
func (ws *watches) checkLoop() {
	s := ws.session
	defer s.workers.Done()
	for {
		select {
		case <-ws.look.C():
		case <-s.ctx.Done():
			return
		}
		ws.mu.Lock()
		all := ws.unchecked
		ws.unchecked = nil
		ws.mu.Unlock()
		for batch := range slices.Chunk(all, checkAtOnce) {
			for !ws.checkKeys(batch) {
				// The renewals decide whether the session lives on; until then, a read more or
				// less does not matter.
				sleep(s.ctx, time.Second)
			}
		}
	}
}

// checkKeys looks for the keys of some watches, and returns whether there was an answer. A key that
// may not be read is left out.
func (ws *watches) checkKeys(batch []*watch) bool {
	s, x := ws.session, &pb.TxnRequest{}
	for _, w := range batch {
		x.Success = append(x.Success, read(&pb.RangeRequest{Key: []byte(w.key), KeysOnly: !w.changes}))
	}
	resp, err := s.txn(s.ctx, "look for keys", x)
	switch half := len(batch) / 2; {
	case err == nil:
	case refused(err) && half > 0:
		return ws.checkKeys(batch[:half]) && ws.checkKeys(batch[half:])
	default:
		return refused(err) || s.ctx.Err() != nil
	}
	for i, w := range batch {
		ws.mu.Lock()
		to := w.to // it may be another by now, for whom the answer is as true
		ws.mu.Unlock()
		if to != nil {
			to.seen(w, only(found(resp, i)), resp.Header.Revision)
		}
	}
	return true
}
