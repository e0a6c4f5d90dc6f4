package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/etcdlock"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// busy is a session of which as many requests to enter are under way as may be at once: what
// comes now goes together. They are kept before they are sent, until the test says go on.
type busy struct {
	*testing.T
	p     *interceptor
	s     driver.Session
	b     *etcdlock.Backend
	goOn  func()
	plugs []driver.Ticket

	entered sync.WaitGroup // the plugs
	sent    atomic.Int64   // transactions that enter, but for the plugs
	shared  atomic.Int64   // of these, with more than one in it
}

func newBusy(t *testing.T, name string, dial func(opts ...grpc.DialOption) *clientv3.Client) *busy {
	t.Helper()
	x := &busy{T: t, p: &interceptor{}}
	gate := make(chan struct{})
	var kept atomic.Int64
	keep := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if r, ok := req.(*pb.TxnRequest); ok && puts(name+"-plug")(r) {
			kept.Add(1)
			<-gate
			ctx = context.WithoutCancel(ctx) // the driver gives its attempt up after seconds, which a busy test may take
		} else if ok && puts(name)(r) {
			x.sent.Add(1)
			if len(r.Success) > 1 && r.Success[0].GetRequestTxn() != nil {
				x.shared.Add(1)
			}
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	x.b = testkit.Must[*etcdlock.Backend](t)(etcdlock.New(dial(grpc.WithChainUnaryInterceptor(keep, x.p.intercept)), nil))
	x.s = testkit.Session(t, x.b, calm, nil)
	x.goOn = sync.OnceFunc(func() { close(gate); x.entered.Wait() })
	t.Cleanup(x.goOn)
	for i := range 2 {
		k := x.s.Ticket(whole(fmt.Sprint(name, "-plug-", i), fmt.Sprint(name, "-plug-", i)))
		x.plugs = append(x.plugs, k)
		x.entered.Go(func() {
			if v, err := k.Enqueue(context.Background()); err != nil || !v.Held {
				t.Errorf("a request that was under way: %+v, %v", v, err)
			}
		})
	}
	testkit.Eventually(t, "enough are under way", func() bool { return kept.Load() == 2 })
	return x
}

// on dials a server without passwords.
func on(t *testing.T, e *backends.Etcd) func(opts ...grpc.DialOption) *clientv3.Client {
	return func(opts ...grpc.DialOption) *clientv3.Client { return client(t, e.Addr, opts...) }
}

// enterAll has tickets enter at once, and the plugs go on when most likely all have asked.
func (x *busy) enterAll(all ...driver.Ticket) (verdicts []driver.Verdict, errs []error) {
	verdicts, errs = make([]driver.Verdict, len(all)), make([]error, len(all))
	var wg sync.WaitGroup
	for i, k := range all {
		wg.Go(func() { verdicts[i], errs[i] = k.Enqueue(ctx(x)) })
	}
	time.Sleep(30 * time.Millisecond)
	x.goOn()
	wg.Wait()
	return verdicts, errs
}

func (x *busy) tickets(n int, name string) (all []driver.Ticket) {
	for i := range n {
		all = append(all, x.s.Ticket(whole(fmt.Sprint(name, "-", i), fmt.Sprint(name, "-", i))))
	}
	return all
}

// What the goroutines of a client ask for at once is few requests, and each gets its lock.
func TestSimultaneousRequestsGoTogether(t *testing.T) {
	t.Parallel()
	e := backends.SharedEtcd(t)
	x := newBusy(t, "together", on(t, e))
	const n = 64
	all := x.tickets(n, "together")
	verdicts, errs := x.enterAll(all...)
	for i := range all {
		there := entries(t, x.b, fmt.Sprint("together-", i))
		if errs[i] != nil || !verdicts[i].Held || len(there) != 1 || there[0].Seq != verdicts[i].Token {
			t.Errorf("%d: %+v, %v; in the store: %+v", i, verdicts[i], errs[i], there)
		}
	}
	if sent := x.sent.Load(); sent > n/2 {
		t.Errorf("%d requests for %d locks", sent, n)
	}
	byMany(t, n, func(i int) error { return all[i].Leave(ctx(t)) })
	for i := range all {
		if there := entries(t, x.b, fmt.Sprint("together-", i)); len(there) != 0 {
			t.Errorf("left: %+v", there)
		}
	}
	if _, err := all[0].Enqueue(ctx(t)); !errors.Is(err, driver.ErrGone) {
		t.Errorf("enqueue after leave: %v", err)
	}
}

// Two of a session that want one lock do not share a request: they would have one place.
func TestOneNameIsNotTwiceInARequest(t *testing.T) {
	t.Parallel()
	x := newBusy(t, "twice", on(t, backends.SharedEtcd(t)))
	a, b, c := x.s.Ticket(whole("twice", "twice-a")), x.s.Ticket(whole("twice", "twice-b")), x.s.Ticket(whole("twice-2", "twice-c"))
	verdicts, errs := x.enterAll(a, b, c)
	there := entries(t, x.b, "twice")
	if len(there) != 2 || there[0].Seq == there[1].Seq {
		t.Fatalf("in the store: %+v, %q", there, errs)
	}
	if verdicts[0].Held == verdicts[1].Held || !verdicts[2].Held {
		t.Errorf("%+v", verdicts)
	}
}

// No caller waits for requests that hang.
func TestHangingRequestsHoldUpNoOthers(t *testing.T) {
	t.Parallel()
	x := newBusy(t, "hang", on(t, backends.SharedEtcd(t)))
	for _, k := range x.tickets(5, "hang") {
		held(t, k)
	}
}

// The answer to several requests is lost: each finds out for itself what became of it.
func TestAnswerToSeveralIsLost(t *testing.T) {
	t.Parallel()
	x := newBusy(t, "lost", on(t, backends.SharedEtcd(t)))
	x.p.set(nil, func(r *pb.TxnRequest) bool { return puts("lost-")(r) && !puts("plug")(r) })
	all := x.tickets(8, "lost")
	_, errs := x.enterAll(all...)
	x.p.set(nil, nil)
	for i, k := range all {
		if !errors.Is(errs[i], errIntercepted) {
			t.Errorf("%d: %v", i, errs[i])
		}
		held(t, k)
		left(t, k)
	}
	if x.shared.Load() == 0 {
		t.Skip("none went together: the machine is too slow for this test")
	}
}

// Several requests arrive together when all their callers have left: none of them enters.
func TestLateRequestOfSeveral(t *testing.T) {
	t.Parallel()
	x := newBusy(t, "lates", on(t, backends.SharedEtcd(t)))
	x.p.set(func(r *pb.TxnRequest) bool { return puts("lates-")(r) && !puts("plug")(r) }, nil)
	all := x.tickets(8, "lates")
	_, errs := x.enterAll(all...)
	x.p.set(nil, nil)
	for i, k := range all {
		if !errors.Is(errs[i], errIntercepted) {
			t.Errorf("%d: %v", i, errs[i])
		}
		if err := k.Leave(ctx(t)); !errors.Is(err, driver.ErrGone) {
			t.Errorf("%d: leave: %v", i, err)
		}
	}
	x.p.deliver(t)
	for i := range all {
		if there := entries(t, x.b, fmt.Sprint("lates-", i)); len(there) != 0 {
			t.Errorf("the late request was applied: %+v", there)
		}
	}
}

// A caller whose context ends before its request was sent leaves nothing to be undone.
func TestCancelledBeforeItWasSent(t *testing.T) {
	t.Parallel()
	for i := range 10 {
		if cancelledUnsent(t, fmt.Sprint("unsent-", i)) {
			return
		}
	}
	t.Error("each was sent before it was cancelled: this test shows nothing")
}

// cancelledUnsent reports whether a request was cancelled before it was sent: on a busy machine it
// is overdue by then, and is sent alone.
func cancelledUnsent(t *testing.T, name string) bool {
	t.Helper()
	x := newBusy(t, name, on(t, backends.SharedEtcd(t)))
	short, cancel := context.WithCancel(ctx(t))
	k, done := x.s.Ticket(whole(name, name)), make(chan error, 1)
	go func() {
		_, err := k.Enqueue(short)
		done <- err
	}()
	time.Sleep(20 * time.Millisecond)
	cancel()
	err := testkit.Await(t, "the cancelled call", done)
	sent := x.sent.Load()
	leave := k.Leave(ctx(t))
	x.goOn()
	if sent == 0 && (!errors.Is(err, context.Canceled) || !errors.Is(leave, driver.ErrGone)) {
		t.Errorf("enqueue: %v, leave: %v", err, leave)
	}
	if sent == 0 && (x.sent.Load() != 0 || x.p.moved.Load() != 0) {
		t.Errorf("it was sent later (%d), or withdrawn (%d)", x.sent.Load(), x.p.moved.Load())
	}
	if there := entries(t, x.b, name); len(there) != 0 && (leave == nil || testkit.Definite(leave)) {
		t.Errorf("in the store: %+v", there)
	}
	return sent == 0
}

// A request that the user may not make is refused, and no other that went with it. Older
// servers do not ask for the permission inside of a transaction.
func TestRefusalOfOneOfSeveral(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	onBoth(t, func(t *testing.T, o backends.EtcdOptions) {
		e := guardedBy(t, o, "hasp/good", "hasp/~")
		for range 5 {
			x := newBusy(t, "good", func(opts ...grpc.DialOption) *clientv3.Client {
				c := testkit.Must[*clientv3.Client](t)(clientv3.New(clientv3.Config{
					Endpoints: []string{"http://" + e.Addr}, Username: "locks", Password: secret, DialOptions: opts,
					Logger: clientv3.NewCtxClient(ctx(t)).GetLogger(), // to nowhere
				}))
				t.Cleanup(func() { c.Close() })
				return c
			})
			all := x.tickets(8, "good")
			bad := x.s.Ticket(whole("bad", "good-for-nothing")) // which counts it
			verdicts, errs := x.enterAll(append(all, bad)...)
			for i := range all {
				if errs[i] != nil || !verdicts[i].Held {
					t.Errorf("%d: %+v, %v", i, verdicts[i], errs[i])
				}
			}
			if !errors.Is(errs[8], driver.ErrRefused) {
				t.Errorf("not permitted: %+v, %v", verdicts[8], errs[8])
			}
			byMany(t, 8, func(i int) error { return all[i].Leave(ctx(t)) })
			for _, k := range x.plugs {
				left(t, k)
			}
			if x.shared.Load() > 0 {
				return
			}
		}
		t.Skip("none went together: the machine is too slow for this test")
	})
}
