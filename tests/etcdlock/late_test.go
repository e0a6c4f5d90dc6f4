package etcdlock_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/etcdlock"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

var errIntercepted = errors.New("test: no answer")

// interceptor sits between the driver and the wire, and does to transactions what networks do:
// it keeps a request and delivers it later, or it loses an answer. The server is real, and
// so are the requests.
type interceptor struct {
	mu    sync.Mutex
	keep  func(*pb.TxnRequest) bool // do not send, but keep
	lose  func(*pb.TxnRequest) bool // send, but lose the answer
	say   error                     // in the place of a lost answer; nil: errPost
	strip func(*pb.Compare) bool    // for controls: what is kept loses these comparisons
	kept  []func() (*pb.TxnResponse, error)

	moved atomic.Int32 // transactions answered that began a new epoch
}

func (p *interceptor) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	r, ok := req.(*pb.TxnRequest)
	if !ok {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	p.mu.Lock()
	keep, lose := p.keep != nil && p.keep(r), p.lose != nil && p.lose(r)
	if keep {
		r := &pb.TxnRequest{Compare: r.Compare, Success: r.Success, Failure: r.Failure}
		if p.strip != nil {
			r.Compare = slices.DeleteFunc(slices.Clone(r.Compare), p.strip)
		}
		p.kept = append(p.kept, func() (*pb.TxnResponse, error) {
			late := new(pb.TxnResponse)
			return late, invoke(context.Background(), method, r, late, cc)
		})
	}
	p.mu.Unlock()
	if keep {
		return errIntercepted
	}
	err := invoke(ctx, method, req, reply, cc, opts...)
	if err == nil && puts("~epoch/")(r) {
		p.moved.Add(1)
	}
	if err == nil && lose {
		return cmp.Or(p.say, errIntercepted)
	}
	return err
}

func (p *interceptor) set(keep, lose func(*pb.TxnRequest) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keep, p.lose = keep, lose
}

// waiting returns how many requests are kept.
func (p *interceptor) waiting() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.kept)
}

// deliver sends what was kept, and returns whether the transactions' comparisons held.
func (p *interceptor) deliver(t *testing.T) (applied []bool) {
	t.Helper()
	p.set(nil, nil)
	for _, send := range p.kept {
		resp, err := send()
		if err != nil {
			t.Fatalf("late delivery: %v", err)
		}
		applied = append(applied, resp.Succeeded)
	}
	p.kept = nil
	return applied
}

// puts matches the transactions that put a key or a value which contains the text.
func puts(text string) func(*pb.TxnRequest) bool {
	return func(r *pb.TxnRequest) bool {
		for _, op := range r.Success {
			if put := op.GetRequestPut(); put != nil && strings.Contains(string(put.Key)+string(put.Value), text) {
				return true
			}
			if one := op.GetRequestTxn(); one != nil && puts(text)(one) {
				return true
			}
		}
		return false
	}
}

// spoiled is a backend behind an interceptor.
func spoiled(t *testing.T, e *backends.Etcd) (*etcdlock.Backend, *interceptor) {
	t.Helper()
	p := &interceptor{}
	b, err := etcdlock.New(client(t, e.Addr, grpc.WithChainUnaryInterceptor(p.intercept)), nil)
	if err != nil {
		t.Fatal(err)
	}
	return b, p
}

func entries(t *testing.T, b driver.Backend, name string) (list []driver.Entry) {
	t.Helper()
	testkit.Until(t, "a list of "+name, func() (err error) {
		list, err = b.List(ctx(t), name, 0)
		return err
	})
	return list
}

// alive renews the session, on whose lease an orphan would live for ever.
func alive(t *testing.T, s driver.Session) {
	t.Helper()
	if _, err := s.KeepAlive(ctx(t)); err != nil {
		t.Fatalf("keepalive: %v", err)
	}
}

// late has what a scenario of late requests needs.
type late struct {
	*testing.T
	b     *etcdlock.Backend
	p     *interceptor
	s     driver.Session
	name  string
	wrong []string
}

func (l *late) complain(format string, args ...any) {
	l.wrong = append(l.wrong, fmt.Sprintf(format, args...))
}

// unanswered makes a ticket whose first request to enter is kept.
func (l *late) unanswered(r driver.Request) driver.Ticket {
	l.Helper()
	k := l.s.Ticket(r)
	l.p.set(puts(r.ID), nil)
	if _, err := k.Enqueue(ctx(l)); !errors.Is(err, errIntercepted) {
		l.Fatalf("enqueue: %v", err)
	}
	l.p.set(nil, nil)
	return k
}

// arrive delivers what was kept, which must change nothing: with these ids in the queue.
func (l *late) arrive(ids ...string) {
	l.Helper()
	for _, applied := range l.p.deliver(l.T) {
		if applied {
			l.complain("the late request was applied")
		}
	}
	alive(l.T, l.s) // on whose lease an orphan would live for ever
	var there []string
	for _, e := range entries(l.T, l.b, l.name) {
		there = append(there, e.ID)
	}
	if !slices.Equal(there, ids) {
		l.complain("in the queue: %q, want %q", there, ids)
	}
}

func (l *late) holds(k driver.Ticket) {
	l.Helper()
	if v, err := k.Enqueue(ctx(l)); err != nil || !v.Held {
		l.Fatalf("enqueue: %+v, %v", v, err)
	}
}

func (l *late) leaves(k driver.Ticket, want error) {
	l.Helper()
	if err := k.Leave(ctx(l)); !errors.Is(err, want) || want == nil && err != nil {
		l.Fatalf("leave: %v, want %v", err, want)
	}
}

func ofEpoch(c *pb.Compare) bool { return strings.Contains(string(c.Key), "~epoch/") }

// lateRequests are the scenarios, each with the comparison that makes the difference. The
// control is the same request without it, as a simpler driver would send it: that one must
// be found out.
var lateRequests = map[string]struct {
	run     func(l *late)
	without func(*pb.Compare) bool
}{
	// L4: a request to enter arrives after the Leave that was to undo it.
	"EnqueueAfterLeave": {without: ofEpoch, run: func(l *late) {
		l.leaves(l.unanswered(whole(l.name, l.name+"-a")), driver.ErrGone)
		l.arrive()
	}},
	// The same, when a second attempt had an answer and the entry was held and released.
	"EnqueueAfterRelease": {without: ofEpoch, run: func(l *late) {
		k := l.unanswered(whole(l.name, l.name+"-a"))
		l.holds(k)
		l.leaves(k, nil)
		l.arrive()
	}},
	// A try that was refused calls Leave no more: it is over with its answer.
	"TryAfterBusy": {without: ofEpoch, run: func(l *late) {
		r := whole(l.name, l.name+"-a")
		r.NoWait = true
		try := l.unanswered(r)
		holder := testkit.Session(l, l.b, calm, nil).Ticket(whole(l.name, l.name+"-b"))
		l.holds(holder)
		if v, err := try.Enqueue(ctx(l)); err != nil || v.Held {
			l.Fatalf("try again: %+v, %v", v, err)
		}
		l.leaves(holder, nil)
		l.arrive()
	}},
	// A withdrawal arrives late itself, when the key it was for has been taken again by
	// another entry of the session: that one stays.
	"LeaveSparesTheNext": {without: func(c *pb.Compare) bool { return c.Target == pb.Compare_VALUE }, run: func(l *late) {
		k := l.s.Ticket(whole(l.name, l.name+"-a"))
		l.p.set(nil, puts(l.name+"-a")) // it is there, and we do not know
		if _, err := k.Enqueue(ctx(l)); !errors.Is(err, errIntercepted) {
			l.Fatalf("enqueue: %v", err)
		}
		l.p.set(puts("~epoch/"), nil)
		l.leaves(k, errIntercepted)
		l.p.set(nil, nil)
		l.leaves(k, nil)
		next := l.s.Ticket(whole(l.name, l.name+"-b"))
		l.holds(next)
		l.p.deliver(l.T)
		if there := entries(l.T, l.b, l.name); len(there) != 1 || there[0].ID != l.name+"-b" {
			l.complain("the late leave took the next entry: %+v", there)
			return
		}
		l.leaves(next, nil)
	}},
	// The answer that moved the epoch on is lost as well: the other entries of the session
	// find out by themselves.
	"EpochAnswerLost": {without: ofEpoch, run: func(l *late) {
		k := l.unanswered(whole(l.name, l.name+"-a"))
		l.p.set(nil, puts("~epoch/"))
		l.leaves(k, errIntercepted)
		l.p.set(nil, nil)
		other := l.s.Ticket(whole(l.name, l.name+"-b"))
		l.holds(other)
		l.leaves(k, driver.ErrGone)
		l.arrive(l.name + "-b")
		l.leaves(other, nil)
	}},
	// S6: a publication that arrives after a later one does not undo it.
	"Publish": {without: func(c *pb.Compare) bool { return c.Target == pb.Compare_MOD }, run: func(l *late) {
		k := l.s.Ticket(whole(l.name, l.name+"-a"))
		l.holds(k)
		publish := func(value string, want error) {
			l.Helper()
			if err := k.(driver.Publisher).Publish(ctx(l), []byte(value)); !errors.Is(err, want) || want == nil && err != nil {
				l.Fatalf("publish %q: %v", value, err)
			}
		}
		l.p.set(puts(l.name+"-a"), nil)
		publish("first", errIntercepted)
		l.p.set(nil, puts(l.name+"-a"))
		publish("second", errIntercepted)
		l.p.set(nil, nil)
		publish("third", nil)
		l.arrive(l.name + "-a")
		if there := entries(l.T, l.b, l.name); string(there[0].Value) != "third" {
			l.complain("published: %q", there[0].Value)
		}
	}},
	"Downgrade":       {without: func(c *pb.Compare) bool { return c.Target == pb.Compare_MOD }, run: lateDowngrade},
	"AdoptAfterLeave": {without: ofEpoch, run: lateAdopt},
	"Evict":           {without: func(c *pb.Compare) bool { return c.Target == pb.Compare_MOD }, run: lateEvict},
	"LeaveAfterAdopt": {without: func(c *pb.Compare) bool { return c.Target == pb.Compare_MOD }, run: lateLeave},
	// Hazard 1, in the whole: Lock is cancelled in the middle of its request, whose fate
	// no client knows, while the session goes on to live and renew.
	"CancelledLock": {without: ofEpoch, run: func(l *late) {
		c, err := hasp.New(l.b)
		if err != nil {
			l.Fatal(err)
		}
		defer c.Close()
		testkit.Release(l, testkit.Must[*hasp.Lease](l)(c.Mutex(l.name).Lock(ctx(l)))) // a session is open
		const times = 10
		for range times {
			l.p.set(puts(l.name+"/"), nil)
			short, cancel := context.WithCancel(ctx(l))
			ended := make(chan error, 1)
			go func() {
				_, err := c.Mutex(l.name).Lock(short)
				ended <- err
			}()
			under := l.p.waiting() + 1
			testkit.Eventually(l, "the request is under way", func() bool { return l.p.waiting() >= under })
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				l.Fatalf("lock: %v", err)
			}
			l.p.set(nil, nil)
		}
		testkit.Eventually(l, "each has been left in the background", func() bool { return l.p.moved.Load() == times })
		l.arrive()
	}},
}

func TestLateRequests(t *testing.T) {
	t.Parallel()
	for name, x := range lateRequests {
		for _, control := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/control=%t", name, control), func(t *testing.T) {
				t.Parallel()
				l := &late{T: t, name: fmt.Sprintf("late-%s-%t", strings.ToLower(name), control)}
				l.b, l.p = spoiled(t, backends.SharedEtcd(t))
				l.s = testkit.Session(t, l.b, calm, nil)
				if control {
					l.p.strip = x.without
				}
				if x.run(l); (len(l.wrong) > 0) != control {
					t.Errorf("wrong: %q", l.wrong)
				}
			})
		}
	}
}

// The core asks for two TTLs and then leaves it to the store; the store leaves it to the
// session, which lives on. A renewal settles it.
func TestLeaveIsSettledByRenewals(t *testing.T) {
	t.Parallel()
	b, p := spoiled(t, backends.SharedEtcd(t))
	s := testkit.Session(t, b, calm, nil)
	k := s.Ticket(whole("late-8", "late-8-a"))
	p.set(nil, puts("late-8-a"))
	if _, err := k.Enqueue(ctx(t)); !errors.Is(err, errIntercepted) {
		t.Fatalf("enqueue: %v", err)
	}
	p.set(puts("~epoch/"), nil)
	for range 3 {
		if err := k.Leave(ctx(t)); !errors.Is(err, errIntercepted) {
			t.Fatalf("leave: %v", err)
		}
	}
	p.set(nil, nil)
	if left := entries(t, b, "late-8"); len(left) != 1 {
		t.Fatalf("left: %+v", left)
	}
	alive(t, s)
	testkit.Eventually(t, "nothing is left", func() bool { return len(entries(t, b, "late-8")) == 0 })
}
