package etcdlock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// Two that take turns watch each other's key once, and never again.
func TestWatchIsKeptForTheNextTurn(t *testing.T) {
	t.Parallel()
	e := backends.StartEtcd(t, backends.EtcdOptions{})
	b := backend(t, storeURL([]*backends.Etcd{e}))
	s := [2]driver.Session{testkit.Session(t, b, calm, nil), testkit.Session(t, b, calm, nil)}
	holder := s[0].Ticket(whole("kept-1", "0"))
	held(t, holder)
	const rounds = 20
	for i := 1; i <= rounds; i++ {
		next := s[i%2].Ticket(whole("kept-1", fmt.Sprint(i)))
		got := waitsFor(t, next)
		left(t, holder)
		turn(t, "the next turn", got)
		holder = next
	}
	left(t, holder)
	// Each watches the other's key, and its own, since the view reaches to the front. More may
	// be asked for where a message overtakes an answer.
	if n := messages(t, e.Addr)["Watch"]; n < 2 || n > rounds {
		t.Errorf("%d messages about watches in %d turns", n, rounds)
	}
}

// answersKept keeps the answers to some transactions until they are let go.
func answersKept(which func(*pb.TxnRequest) bool) (keep grpc.DialOption, made, let chan struct{}) {
	made, let = make(chan struct{}, 9), make(chan struct{})
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := invoke(ctx, method, req, reply, cc, opts...)
		if r, ok := req.(*pb.TxnRequest); ok && which(r) {
			made <- struct{}{}
			<-let
		}
		return err
	}), made, let
}

// L2: the blocker leaves before the waiter knows that it is behind it, and a watch that was kept
// from the last time tells that while it has no listener. There will be no other message.
func TestKeptWatchOvertakesEnqueue(t *testing.T) {
	t.Parallel()
	e := backends.StartEtcd(t, backends.EtcdOptions{})
	other := testkit.Session(t, backend(t, storeURL([]*backends.Etcd{e})), calm, nil)
	keep, made, let := answersKept(puts("second"))
	b, count := countsWatches(t, e, keep)
	s := testkit.Session(t, b, calm, nil)
	first := other.Ticket(whole("kept-2", "a"))
	held(t, first)
	k := s.Ticket(whole("kept-2", "first"))
	got := waitsFor(t, k)
	// That of the blocker, our own, and the one that keeps the stream open.
	testkit.Eventually(t, "both keys are watched", func() bool { return count.established.Load() == 3 })
	left(t, first)
	turn(t, "the first turn", got)
	left(t, k) // and the watches are kept

	again, last := other.Ticket(whole("kept-2", "b")), other.Ticket(whole("kept-2-last", "b"))
	held(t, again)
	held(t, last)
	told := waitsFor(t, s.Ticket(whole("kept-2-last", "c")))
	testkit.Eventually(t, "its keys are watched too", func() bool { return count.established.Load() == 5 })
	k = s.Ticket(whole("kept-2", "second"))
	entered := make(chan error, 1)
	go func() {
		_, err := k.Enqueue(ctx(t))
		entered <- err
	}()
	<-made
	left(t, again)
	left(t, last)
	turn(t, "the message that comes behind", told)
	close(let)
	turn(t, "the answer", entered)
	select {
	case err := <-turnOf(t, k):
		if err != nil {
			t.Error(err)
		}
	case <-time.After(soon):
		t.Error("sleeps through its turn")
	}
}

// A watch that is kept and tells only of others' locks is ended, and so is one that tells
// nothing, after two renewals.
func TestKeptWatchEnds(t *testing.T) {
	t.Parallel()
	e := backends.StartEtcd(t, backends.EtcdOptions{})
	b, count := countsWatches(t, e)
	ours, other := testkit.Session(t, b, calm, nil), testkit.Session(t, backend(t, storeURL([]*backends.Etcd{e})), calm, nil)
	holder, k := other.Ticket(whole("kept-3", "a")), ours.Ticket(whole("kept-3", "b"))
	held(t, holder)
	got := waitsFor(t, k)
	testkit.Eventually(t, "both keys are watched", func() bool { return count.established.Load() == 3 })
	left(t, holder)
	turn(t, "the turn", got)
	left(t, k)
	if n := count.ended.Load(); n != 0 {
		t.Errorf("%d are ended", n)
	}
	for i := range 10 {
		k := other.Ticket(whole("kept-3", fmt.Sprint("o", i)))
		held(t, k)
		left(t, k)
	}
	testkit.Eventually(t, "that of the other's key is ended", func() bool { return count.ended.Load() == 1 })
	alive(t, ours)
	alive(t, ours)
	testkit.Eventually(t, "that of the key that is ours is ended", func() bool { return count.ended.Load() == 2 })
}
