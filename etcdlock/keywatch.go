package etcdlock

import (
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// keyWatch watches the keys of held entries, since a renewed lease does not mean that they
// are there: an operator may have deleted one.
//
// A lock that is held for a millisecond needs no such watch, and would pay four messages
// for it. So an entry is watched once it has been held for one or two watchAfters; a
// deletion before that is found then. (A release finds it in any case.)
//
// A watch begins "now"; that the key was still there then must be checked, and is,
// for many keys in one read. So are the keys of blockers (bykeys.go).
type keyWatch struct {
	mu          sync.Mutex
	ended       bool
	timer       *time.Timer
	recent      []*ticket // held since the timer last fired
	due         []*ticket // held since the time before
	unconfirmed []*ticket // whose watch is established, but which may have been deleted before
	confirming  bool
}

const (
	watchAfter    = 20 * time.Millisecond
	confirmAtOnce = 64 // keys in one read; etcd allows 128 operations in a transaction
)

// begin has a held entry watched in a while.
func (v *keyWatch) begin(t *ticket) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ended {
		return
	}
	v.recent = append(v.recent, t)
	if v.timer == nil {
		v.timer = time.AfterFunc(watchAfter, v.sweep)
	}
}

// sweep is the timer's function. The timer is stopped while no ticket is recent.
func (v *keyWatch) sweep() {
	v.mu.Lock()
	due := v.due
	v.due, v.recent = v.recent, nil
	if v.ended || len(v.due) == 0 {
		v.timer = nil
	} else {
		v.timer.Reset(watchAfter)
	}
	v.mu.Unlock()
	for _, t := range due {
		t.mu.Lock()
		if !t.left && !t.gone && t.ownWatch == nil {
			t.ownWatch = t.session.watch.add(&watch{key: t.key, to: t}, t.view.rev)
		}
		t.mu.Unlock()
	}
}

// confirm has a key looked for in the background.
func (v *keyWatch) confirm(t *ticket) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ended {
		return
	}
	v.unconfirmed = append(v.unconfirmed, t)
	if !v.confirming && t.session.startWorker() {
		v.confirming = true
		go v.confirmAll(t.session)
	}
}

// confirmAll looks for unconfirmed keys until there are none.
func (v *keyWatch) confirmAll(s *session) {
	defer s.workers.Done()
	for {
		v.mu.Lock()
		n := min(len(v.unconfirmed), confirmAtOnce)
		batch := v.unconfirmed[:n:n]
		v.unconfirmed = v.unconfirmed[n:]
		if n == 0 || v.ended {
			v.unconfirmed, v.confirming = nil, false
			v.mu.Unlock()
			return
		}
		v.mu.Unlock()
		for !s.confirmKeys(batch) {
			// The renewals decide whether the session lives on; until then, a read more or
			// less does not matter.
			sleep(s.ctx, time.Second)
		}
	}
}

// confirmKeys looks for the keys of some tickets, and returns whether there was an answer.
func (s *session) confirmKeys(batch []*ticket) bool {
	x := &pb.TxnRequest{}
	for _, t := range batch {
		key := t.toConfirm()
		// With the value, the lease is told as well, which decides about a blocker.
		x.Success = append(x.Success, read(&pb.RangeRequest{Key: []byte(key), KeysOnly: key == t.key}))
	}
	resp, err := s.txn(s.ctx, "look for held entries", x)
	if err != nil {
		return s.ctx.Err() != nil
	}
	for i, t := range batch {
		kv := only(found(resp, i))
		if string(x.Success[i].GetRequestRange().Key) != t.key {
			t.blockerSeen(kv)
			continue
		}
		t.mu.Lock()
		missing := !t.left && (kv == nil || kv.CreateRevision != t.rev)
		// A holder needs nothing but its key, and is as new as this read. A waiter is not: its key is
		// looked for if none was ahead when it was asked for (toConfirm), and meanwhile the answer
		// to an older read of the queue may have come. Were that view said to be as new as this
		// read, it would pass over all that left in between, and nothing would tell of it again.
		if t.held {
			t.view.rev = max(t.view.rev, resp.Header.Revision)
		}
		t.mu.Unlock()
		if missing {
			t.keyLost()
		}
	}
	return true
}

// end stops the timer; what it has started ends with the session's context.
func (v *keyWatch) end() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ended = true
	if v.timer != nil {
		v.timer.Stop()
	}
	v.recent, v.due = nil, nil
}
