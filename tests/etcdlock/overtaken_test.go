package etcdlock_test

import (
	"context"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/etcdlock"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// slowAnswers keeps answers to looks until they are let go: the server has made them, and
// what happens meanwhile is told by watches.
type slowAnswers struct {
	made chan struct{} // one for each answer that is kept
	let  chan struct{} // closed: let go
}

func (s *slowAnswers) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, cc, opts...)
	if r, ok := req.(*pb.TxnRequest); ok && looks(r) {
		s.made <- struct{}{}
		<-s.let
	}
	return err
}

// looks returns whether it is read who is ahead of an entry.
func looks(r *pb.TxnRequest) bool {
	return len(r.Success) == 1 && r.Success[0].GetRequestRange().GetMaxCreateRevision() > 0
}

// L2: a message overtakes the answer to a look that the server made before. What the message
// says counts, be it that the blocker has become smaller or that it has gone: there will be no
// other, and the answer knows nothing of it.
func TestMessageOvertakesLook(t *testing.T) {
	t.Parallel()
	for what, ahead := range map[string]func(t *testing.T, k driver.Ticket) error{
		"downgrade": func(t *testing.T, k driver.Ticket) error { return k.(driver.Downgrader).Downgrade(ctx(t), 1) },
		"departure": func(t *testing.T, k driver.Ticket) error { return k.Leave(ctx(t)) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			e := backends.StartEtcd(t, backends.EtcdOptions{}) // others' writes must cause no looks
			name := "overtaken-" + what
			blocker := testkit.Session(t, backend(t, storeURL([]*backends.Etcd{e})), calm, nil)
			writer, last := blocker.Ticket(whole(name, "w")), blocker.Ticket(whole(name+"-last", "w"))
			held(t, writer)
			held(t, last)

			slow := &slowAnswers{make(chan struct{}, 9), make(chan struct{})}
			b := testkit.Must[*etcdlock.Backend](t)(etcdlock.New(client(t, e.Addr, grpc.WithChainUnaryInterceptor(slow.intercept)), nil))
			s := testkit.Session(t, b, calm, nil)
			reader, sentinel := s.Ticket(request(name, "r", 1, driver.Whole)), s.Ticket(whole(name+"-last", "s"))
			waits := func(k driver.Ticket) <-chan error {
				done := make(chan error, 1)
				go func() {
					v, err := k.Wait(ctx(t))
					for err == nil && !v.Held {
						v, err = k.Wait(ctx(t))
					}
					done <- err
				}()
				return done
			}
			testkit.Entered(t, reader)
			// The watch begins later than the read that found the reader's place, so it reads
			// again.
			testkit.Must[*clientv3.PutResponse](t)(client(t, e.Addr).Put(ctx(t), "other", "x"))
			got := waits(reader)
			<-slow.made
			testkit.Entered(t, sentinel)
			told := waits(sentinel)
			time.Sleep(200 * time.Millisecond) // its watch is established most likely; else it reads, and is kept as well
			if err := ahead(t, writer); err != nil {
				t.Fatal(err)
			}
			if err := last.Leave(ctx(t)); err != nil {
				t.Fatal(err)
			}
			select { // the messages come in order, on one stream
			case err := <-told:
				if err != nil {
					t.Fatal(err)
				}
			case <-slow.made:
			}
			close(slow.let)
			select {
			case err := <-got:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(soon):
				t.Errorf("sleeps through the %s", what)
			}
		})
	}
}
