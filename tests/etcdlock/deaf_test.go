package etcdlock_test

import (
	"context"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// silentWatches has watches be established, and nothing more be told: as behind a proxy that has
// lost its own watch, or at a member that hangs.
func silentWatches(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, d, cc, method, opts...)
	return silentStream{s}, err
}

type silentStream struct{ grpc.ClientStream }

func (s silentStream) RecvMsg(m any) error {
	for {
		err := s.ClientStream.RecvMsg(m)
		if r, ok := m.(*pb.WatchResponse); err != nil || !ok || len(r.Events) == 0 {
			return err
		}
	}
}

// L2: no message comes. What happened is found with the second renewal.
func TestLostMessages(t *testing.T) {
	t.Parallel()
	e := backends.StartEtcd(t, backends.EtcdOptions{})
	raw := client(t, e.Addr)
	other := testkit.Session(t, backend(t, storeURL([]*backends.Etcd{e})), calm, nil)
	b, count := countsWatches(t, e, grpc.WithChainStreamInterceptor(silentWatches))
	lost := make(chan string, 9)
	s := testkit.Session(t, b, calm, func(id string, _ error) { lost <- id })

	holder, writer, permits := other.Ticket(whole("deaf-1", "a")), other.Ticket(whole("deaf-2", "a")), other.Ticket(request("deaf-3", "a", 3, 3))
	for _, k := range []driver.Ticket{holder, writer, permits} {
		held(t, k)
	}
	behind := map[string]<-chan error{
		"a holder that left":         waitsFor(t, s.Ticket(whole("deaf-1", "b"))),
		"a writer that reads by now": waitsFor(t, s.Ticket(request("deaf-2", "b", 1, driver.Whole))),
		"permits that were returned": waitsFor(t, s.Ticket(request("deaf-3", "b", 2, 3))),
	}
	held(t, s.Ticket(whole("deaf-4", "deleted")))
	held(t, s.Ticket(whole("deaf-5", "stays")))
	// Those of the blockers, of the own keys, and the one that keeps the stream.
	testkit.Eventually(t, "all are watched", func() bool { return count.established.Load() == 3+5+1 })

	left(t, holder)
	left(t, permits)
	if err := writer.(driver.Downgrader).Downgrade(ctx(t), 1); err != nil {
		t.Fatal(err)
	}
	remove(t, raw, "deaf-4", "deleted")
	testkit.Must[*clientv3.PutResponse](t)(raw.Put(ctx(t), "other", "x"))
	select {
	case id := <-lost:
		t.Errorf("%s is lost before anything is told", id)
	default:
	}
	alive(t, s)
	alive(t, s)
	for what, got := range behind {
		turn(t, "the turn behind "+what, got)
	}
	if id := testkit.Await(t, "the loss", lost); id != "deleted" {
		t.Errorf("%s is lost", id)
	}
}
