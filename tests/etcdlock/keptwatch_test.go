package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/etcdlock"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// waitsFor has a ticket enter behind another one, and returns its turn.
func waitsFor(t *testing.T, k driver.Ticket) <-chan error {
	t.Helper()
	if v := testkit.Entered(t, k); v.Held {
		t.Fatalf("enqueue: %+v", v)
	}
	return turnOf(t, k)
}

// turnOf has a ticket wait until it holds.
func turnOf(t *testing.T, k driver.Ticket) <-chan error {
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

// left leaves, and asks again while the store does not answer.
func left(t *testing.T, k driver.Ticket) {
	t.Helper()
	all := ctx(t)
	err := k.Leave(all)
	for err != nil && !testkit.Definite(err) && all.Err() == nil {
		if err = k.Leave(all); errors.Is(err, driver.ErrGone) {
			return // by the request before
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

func turn(t *testing.T, what string, done <-chan error) {
	t.Helper()
	if err := testkit.Await(t, what, done); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// watchCount counts what a client's watch streams send and are told.
type watchCount struct{ established, ended, probes atomic.Int64 }

func (c *watchCount) intercept(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, d, cc, method, opts...)
	return countedStream{s, c}, err
}

type countedStream struct {
	grpc.ClientStream
	count *watchCount
}

func (s countedStream) SendMsg(m any) error {
	if r, ok := m.(*pb.WatchRequest); ok && r.GetProgressRequest() != nil {
		s.count.probes.Add(1)
	} else if ok && r.GetCancelRequest() != nil {
		s.count.ended.Add(1)
	}
	return s.ClientStream.SendMsg(m)
}

func (s countedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if r, ok := m.(*pb.WatchResponse); ok && err == nil && r.Created && !r.Canceled {
		s.count.established.Add(1)
	}
	return err
}

// countsWatches is a client of etcd's whose watches are counted.
func countsWatches(t *testing.T, e *backends.Etcd, opts ...grpc.DialOption) (*etcdlock.Backend, *watchCount) {
	c := &watchCount{}
	dialed := client(t, e.Addr, append(opts, grpc.WithChainStreamInterceptor(c.intercept))...)
	return testkit.Must[*etcdlock.Backend](t)(etcdlock.New(dialed, nil)), c
}

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
	testkit.Eventually(t, "both keys are watched", func() bool { return count.established.Load() == 2 })
	left(t, first)
	turn(t, "the first turn", got)
	left(t, k) // and the watches are kept

	again, last := other.Ticket(whole("kept-2", "b")), other.Ticket(whole("kept-2-last", "b"))
	held(t, again)
	held(t, last)
	told := waitsFor(t, s.Ticket(whole("kept-2-last", "c")))
	testkit.Eventually(t, "its keys are watched too", func() bool { return count.established.Load() == 4 })
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
	testkit.Eventually(t, "both keys are watched", func() bool { return count.established.Load() == 2 })
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

// A kept watch goes with its stream.
func TestKeptWatchEndsWithTheStream(t *testing.T) {
	t.Parallel()
	e := backends.StartEtcd(t, backends.EtcdOptions{})
	p := testkit.Proxy(t, e.Addr)
	holder := testkit.Client(t, storeURL([]*backends.Etcd{e}), hasp.WithTTL(calm))
	waiter := testkit.Client(t, "etcd://"+p.Addr(), hasp.WithTTL(calm))
	for range 3 {
		handOver{holder: holder, waiter: waiter, name: "kept-4", meanwhile: func() {}}.passes(t)
		p.Cut() // with a kept watch, which another one must replace
		testkit.Release(t, testkit.LockDespiteErrors(t, waiter, "kept-4-other"))
	}
}

// A stream is asked for a sign of life only if it was silent since the last renewal.
func TestOnlySilentStreamsAreProbed(t *testing.T) {
	t.Parallel()
	e := backends.StartEtcd(t, backends.EtcdOptions{})
	b, count := countsWatches(t, e)
	s, other := testkit.Session(t, b, calm, nil), testkit.Session(t, b, calm, nil)
	for i := range 3 {
		name := fmt.Sprint("silent-", i)
		k := other.Ticket(whole(name, "a"))
		held(t, k)
		got := waitsFor(t, s.Ticket(whole(name, "b")))
		left(t, k) // before the watch is established or later: either way the stream tells something
		turn(t, "the turn", got)
		alive(t, s)
	}
	if n := count.probes.Load(); n != 0 {
		t.Errorf("%d probes of a stream that talks", n)
	}
	testkit.Eventually(t, "the silent stream is probed", func() bool {
		alive(t, s)
		return count.probes.Load() > 0
	})
}
