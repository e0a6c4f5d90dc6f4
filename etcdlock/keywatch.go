package etcdlock

import (
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// vigil watches the keys of held entries, since a renewed lease does not mean that they
// are there: an operator may have deleted one.
//
// A lock that is held for a millisecond needs no such watch, and would pay four messages
// for it. So an entry is watched once it has been held for one or two watchAfters; a
// deletion before that is found then. (A release finds it in any case.)
//
// A watch begins "now"; that the key was still there then must be checked, and is,
// for many keys in one read.
type vigil struct {
	mu      sync.Mutex
	ended   bool
	timer   *time.Timer
	young   []*ticket // held since the timer last fired
	aged    []*ticket // held since the time before
	doubted []*ticket // whose watch stands, but who may have been deleted before
	asking  bool
}

const (
	watchAfter = 20 * time.Millisecond
	askAtOnce  = 64 // keys in one read; etcd allows 128 operations in a transaction
)

// begin has a held entry watched in a while.
func (v *vigil) begin(t *ticket) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ended {
		return
	}
	v.young = append(v.young, t)
	if v.timer == nil {
		v.timer = time.AfterFunc(watchAfter, v.sweep)
	}
}

// sweep is the timer's. It stands still while nobody is young.
func (v *vigil) sweep() {
	v.mu.Lock()
	due := v.aged
	v.aged, v.young = v.young, nil
	if v.ended || len(v.aged) == 0 {
		v.timer = nil
	} else {
		v.timer.Reset(watchAfter)
	}
	v.mu.Unlock()
	for _, t := range due {
		t.mu.Lock()
		if !t.left && t.own == nil {
			t.own = t.session.watch.add(&watch{key: t.key, to: t})
		}
		t.mu.Unlock()
	}
}

// doubt has a key looked for in the background.
func (v *vigil) doubt(t *ticket) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ended {
		return
	}
	v.doubted = append(v.doubted, t)
	if !v.asking && t.session.busy() {
		v.asking = true
		go v.ask(t.session)
	}
}

// ask looks for doubted keys until there are none.
func (v *vigil) ask(s *session) {
	defer s.closed.Done()
	for {
		v.mu.Lock()
		n := min(len(v.doubted), askAtOnce)
		batch := v.doubted[:n:n]
		v.doubted = v.doubted[n:]
		if n == 0 || v.ended {
			v.doubted, v.asking = nil, false
			v.mu.Unlock()
			return
		}
		v.mu.Unlock()
		for !s.askFor(batch) {
			// The renewals decide whether the session lives on; until then, a question more or
			// less does not matter.
			sleep(s.ctx, time.Second)
		}
	}
}

// askFor looks for the keys of some tickets, and returns whether there was an answer.
func (s *session) askFor(batch []*ticket) bool {
	x := &pb.TxnRequest{}
	for _, t := range batch {
		x.Success = append(x.Success, read(&pb.RangeRequest{Key: []byte(t.key), KeysOnly: true}))
	}
	resp, err := s.txn(s.ctx, "look for held entries", x)
	if err != nil {
		return s.ctx.Err() != nil
	}
	for i, t := range batch {
		kv := only(found(resp, i))
		t.mu.Lock()
		missing := !t.left && (kv == nil || kv.CreateRevision != t.rev)
		t.view.rev = max(t.view.rev, resp.Header.Revision)
		t.mu.Unlock()
		if missing {
			t.lost()
		}
	}
	return true
}

// end stops the vigil; what it has started ends with the session's context.
func (v *vigil) end() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ended = true
	if v.timer != nil {
		v.timer.Stop()
	}
	v.young, v.aged = nil, nil
}
