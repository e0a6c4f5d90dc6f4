package etcdlock

import (
	"context"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hasplock/hasp/driver"
)

// What a look finds at a key counts as what the watch should have told, and nothing more: a view
// that is as new as the look stays as it is, and so does an entry that still has its key.
func TestSeen(t *testing.T) {
	t.Parallel()
	const ours, blocker, read = 5, 3, 10 // revisions: of our key, of the blocker's, of the view
	made := func(rev int64) *mvccpb.KeyValue { return &mvccpb.KeyValue{CreateRevision: rev, ModRevision: rev} }
	for name, c := range map[string]struct {
		own        bool
		found      *mvccpb.KeyValue
		rev        int64
		left, lost bool
	}{
		"the blocker is there":             {found: made(blocker), rev: 12},
		"it has left":                      {rev: 12, left: true},
		"its key is another entry's":       {found: made(12), rev: 13, left: true},
		"the view is newer":                {rev: 8},
		"the view is newer, and has its":   {found: made(blocker), rev: 8},
		"our key is there":                 {own: true, found: made(ours), rev: 12},
		"it was deleted":                   {own: true, rev: 12, lost: true},
		"it was deleted, and made anew":    {own: true, found: made(12), rev: 13, lost: true},
		"it is not there at its revision":  {own: true, rev: ours, lost: true},
		"an older use of it was read late": {own: true, rev: ours - 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lost := false
			s := &session{backend: &Backend{prefix: DefaultPrefix}, gone: func(string, error) { lost = true }}
			s.watches.session = s
			k := s.Ticket(driver.Request{Name: "name", ID: "id", Units: driver.Whole, Capacity: driver.Whole}).(*ticket)
			k.key, k.rev = "hasp/name/7-0", ours
			k.view = view{rev: read, complete: true, keys: []string{"hasp/name/5-0"}, ahead: []driver.Entry{{Seq: blocker}}}
			w := &watch{key: k.view.keys[0], to: k}
			_, w.end = context.WithCancel(context.Background())
			if c.own {
				w.key, k.ownWatch = k.key, w
			}
			k.seen(w, c.found, c.rev)
			if left := len(k.view.keys) == 0; left != c.left || lost != c.lost {
				t.Errorf("left: %t, lost: %t", left, lost)
			}
		})
	}
}

// The message that a blocker has left overtakes an answer that still has it. There is no second
// message, so the view is read again, until an answer is as late as the message.
func TestAnswerOlderThanMessage(t *testing.T) {
	t.Parallel()
	s := &session{backend: &Backend{prefix: DefaultPrefix}}
	k := s.Ticket(driver.Request{Name: "name", ID: "id", Units: driver.Whole, Capacity: driver.Whole}).(*ticket)
	there := &pb.RangeResponse{Kvs: []*mvccpb.KeyValue{{Key: []byte("hasp/name/5-0"), CreateRevision: 3, Lease: 5}}}
	k.replaceView(there, 8)
	k.blockerChanged("hasp/name/5-0", 12, nil)
	if held, sure, _ := k.decide(); !held || !sure || k.view.stale() {
		t.Errorf("told that it has left: %+v", k.view)
	}
	k.replaceView(there, 10)
	if held, _, _ := k.decide(); held || !k.view.stale() {
		t.Errorf("an older answer: %+v", k.view)
	}
	k.replaceView(&pb.RangeResponse{}, 12)
	if held, sure, _ := k.decide(); !held || !sure || k.view.stale() {
		t.Errorf("an answer as late as the message: %+v", k.view)
	}
}
