package etcdlock

import (
	"context"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"

	"github.com/hasplock/hasp/driver"
)

// scriptedKV answers transactions with what a test says.
type scriptedKV struct {
	pb.KVClient
	txn func(*pb.TxnRequest) *pb.TxnResponse
}

func (s scriptedKV) Txn(_ context.Context, x *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	return s.txn(x), nil
}

// scriptedSession is a session without a server. Its stream is never opened.
func scriptedSession(t *testing.T, txn func(*pb.TxnRequest) *pb.TxnResponse) *session {
	t.Helper()
	s := &session{
		backend: &Backend{kv: scriptedKV{txn: txn}, prefix: DefaultPrefix}, lease: 7, bound: time.Minute,
		gone: func(id string, err error) { t.Errorf("gone: %q, %v", id, err) },
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	t.Cleanup(s.stop)
	s.watch = newStream(s)
	return s
}

// L2: a waiter's key is looked for when its last known blocker has left. The answer to the read of
// those ahead, which was made before, comes first, and shows one that has left by now. The
// waiter must still heed what it is told of that one: the message of its departure, or a watch that
// begins after it. There will be no other.
func TestConfirmedWaiterHeedsItsBlocker(t *testing.T) {
	t.Parallel()
	const read, left, confirmed = 12, 15, 20 // revisions
	for name, told := range map[string]func(t *ticket, w *watch){
		"departure": func(t *ticket, w *watch) { t.deleted(w, left) },
		"watch":     func(t *ticket, w *watch) { t.established(w, left, false) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var k *ticket
			ahead := &mvccpb.KeyValue{Key: []byte("hasp/name/5-0"), CreateRevision: 3}
			s := scriptedSession(t, func(x *pb.TxnRequest) *pb.TxnResponse {
				if len(x.Success) != 1 || string(x.Success[0].GetRequestRange().Key) != k.key {
					t.Errorf("asked for %v", x)
				}
				k.mu.Lock()
				defer k.mu.Unlock()
				k.replaceView(&pb.RangeResponse{Kvs: []*mvccpb.KeyValue{ahead}}, read, true)
				own := &pb.RangeResponse{Kvs: []*mvccpb.KeyValue{{Key: []byte(k.key), CreateRevision: k.rev}}}
				return &pb.TxnResponse{
					Header:    &pb.ResponseHeader{Revision: confirmed},
					Responses: []*pb.ResponseOp{{Response: &pb.ResponseOp_ResponseRange{ResponseRange: own}}},
				}
			})
			k = s.Ticket(driver.Request{Name: "name", ID: "id", Units: driver.Whole, Capacity: driver.Whole}).(*ticket)
			k.key, k.rev, k.view = "hasp/name/7-0", 5, view{rev: 10, byKeys: true}
			if !s.confirmKeys([]*ticket{k}) {
				t.Fatal("no answer")
			}
			if len(k.view.keys) != 1 {
				t.Fatalf("ahead are %q", k.view.keys)
			}
			told(k, &watch{key: string(ahead.Key)})
			if len(k.view.keys) != 0 && !k.view.stale() {
				t.Errorf("sleeps behind %q, which has left", k.view.keys)
			}
			select {
			case <-k.signal.C():
			default:
				t.Error("is not woken")
			}
		})
	}
}
