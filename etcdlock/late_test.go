package etcdlock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/etcdlock"
	"github.com/hasplock/hasp/internal/backends"
)

var errPost = errors.New("test: no answer")

// post stands between the driver and the wire, and does to transactions what networks do:
// it keeps a request and delivers it later, or it loses an answer. The server is real, and
// so is what is delivered.
type post struct {
	mu   sync.Mutex
	keep func(*pb.TxnRequest) bool // do not send, but keep
	lose func(*pb.TxnRequest) bool // send, but lose the answer
	kept []func() (*pb.TxnResponse, error)

	moved atomic.Int32 // transactions answered that began a new epoch
}

func (p *post) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	r, ok := req.(*pb.TxnRequest)
	if !ok {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	p.mu.Lock()
	keep, lose := p.keep != nil && p.keep(r), p.lose != nil && p.lose(r)
	if keep {
		p.kept = append(p.kept, func() (*pb.TxnResponse, error) {
			late := new(pb.TxnResponse)
			return late, invoke(context.Background(), method, r, late, cc)
		})
	}
	p.mu.Unlock()
	if keep {
		return errPost
	}
	err := invoke(ctx, method, req, reply, cc, opts...)
	if err == nil && puts("~epoch/")(r) {
		p.moved.Add(1)
	}
	if err == nil && lose {
		return errPost
	}
	return err
}

func (p *post) set(keep, lose func(*pb.TxnRequest) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keep, p.lose = keep, lose
}

// deliver sends what was kept, and returns whether the transactions' comparisons held.
func (p *post) deliver(t *testing.T) (applied []bool) {
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
		}
		return false
	}
}

// spoiled is a backend behind a post.
func spoiled(t *testing.T, e *backends.Etcd) (*etcdlock.Backend, *post) {
	t.Helper()
	p := &post{}
	b, err := etcdlock.Open(client(t, e.Addr, grpc.WithChainUnaryInterceptor(p.intercept)), nil)
	if err != nil {
		t.Fatal(err)
	}
	return b, p
}

func entries(t *testing.T, b driver.Backend, name string) []driver.Entry {
	t.Helper()
	return must[[]driver.Entry](t)(b.List(ctx(t), name))
}

// alive renews the session, on whose lease an orphan would live for ever.
func alive(t *testing.T, s driver.Session) {
	t.Helper()
	if _, err := s.KeepAlive(ctx(t)); err != nil {
		t.Fatalf("keepalive: %v", err)
	}
}

// L4: a request to enter arrives after the Leave that was to undo it. The control shows
// that the same request makes an entry when it arrives before.
func TestLateEnqueueAfterLeave(t *testing.T) {
	for _, before := range []bool{true, false} {
		b, p := spoiled(t, backends.SharedEtcd(t))
		s := session(t, b, 10*time.Second, nil)
		k := s.Ticket(whole("late-1", "late-1-a"))
		p.set(puts("late-1-a"), nil)
		if _, err := k.Enqueue(ctx(t)); !errors.Is(err, errPost) {
			t.Fatalf("enqueue: %v", err)
		}
		if before {
			if applied := p.deliver(t); !applied[0] || len(entries(t, b, "late-1")) != 1 {
				t.Fatal("the request makes no entry at all: this test shows nothing")
			}
			if err := k.Leave(ctx(t)); err != nil {
				t.Fatalf("leave: %v", err)
			}
		} else {
			if err := k.Leave(ctx(t)); !errors.Is(err, driver.ErrGone) {
				t.Fatalf("leave: %v", err)
			}
			if applied := p.deliver(t); applied[0] {
				t.Error("the late request was applied")
			}
		}
		alive(t, s)
		if left := entries(t, b, "late-1"); len(left) != 0 {
			t.Errorf("left: %+v", left)
		}
		next := s.Ticket(whole("late-1", "late-1-b"))
		if v, err := next.Enqueue(ctx(t)); err != nil || !v.Held {
			t.Errorf("the next entry of the same session: %+v, %v", v, err)
		}
		if err := next.Leave(ctx(t)); err != nil {
			t.Error(err)
		}
	}
}

// The same, when a second attempt had an answer and the entry was held and released.
func TestLateEnqueueAfterRelease(t *testing.T) {
	b, p := spoiled(t, backends.SharedEtcd(t))
	s := session(t, b, 10*time.Second, nil)
	k := s.Ticket(whole("late-2", "late-2-a"))
	p.set(puts("late-2-a"), nil)
	if _, err := k.Enqueue(ctx(t)); !errors.Is(err, errPost) {
		t.Fatalf("enqueue: %v", err)
	}
	p.set(nil, nil)
	if v, err := k.Enqueue(ctx(t)); err != nil || !v.Held {
		t.Fatalf("enqueue again: %+v, %v", v, err)
	}
	if err := k.Leave(ctx(t)); err != nil {
		t.Fatalf("leave: %v", err)
	}
	if applied := p.deliver(t); applied[0] {
		t.Error("the late request was applied")
	}
	if left := entries(t, b, "late-2"); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
}

// A try that was refused calls Leave no more: it is over with its answer.
func TestLateTryAfterBusy(t *testing.T) {
	b, p := spoiled(t, backends.SharedEtcd(t))
	s, other := session(t, b, 10*time.Second, nil), session(t, b, 10*time.Second, nil)
	r := whole("late-3", "late-3-a")
	r.NoWait = true
	try := s.Ticket(r)
	p.set(puts("late-3-a"), nil)
	if _, err := try.Enqueue(ctx(t)); !errors.Is(err, errPost) {
		t.Fatalf("try: %v", err)
	}
	p.set(nil, nil)
	holder := other.Ticket(whole("late-3", "late-3-b"))
	must[driver.Verdict](t)(holder.Enqueue(ctx(t)))
	if v, err := try.Enqueue(ctx(t)); err != nil || v.Held {
		t.Fatalf("try again: %+v, %v", v, err)
	}
	if err := holder.Leave(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if applied := p.deliver(t); applied[0] {
		t.Error("the late try was applied")
	}
	if left := entries(t, b, "late-3"); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
}

// A withdrawal arrives late itself, when the key it was for has been taken again by another
// entry of the session: that one stays.
func TestLateLeaveSparesTheNext(t *testing.T) {
	b, p := spoiled(t, backends.SharedEtcd(t))
	s := session(t, b, 10*time.Second, nil)
	k := s.Ticket(whole("late-7", "late-7-a"))
	p.set(nil, puts("late-7-a")) // it is there, and we do not know
	if _, err := k.Enqueue(ctx(t)); !errors.Is(err, errPost) {
		t.Fatalf("enqueue: %v", err)
	}
	p.set(puts("~epoch/"), nil)
	if err := k.Leave(ctx(t)); !errors.Is(err, errPost) {
		t.Fatalf("leave: %v", err)
	}
	p.set(nil, nil)
	if err := k.Leave(ctx(t)); err != nil {
		t.Fatalf("leave again: %v", err)
	}
	next := s.Ticket(whole("late-7", "late-7-b"))
	if v, err := next.Enqueue(ctx(t)); err != nil || !v.Held {
		t.Fatalf("the next entry: %+v, %v", v, err)
	}
	p.deliver(t)
	if left := entries(t, b, "late-7"); len(left) != 1 || left[0].ID != "late-7-b" {
		t.Errorf("the late leave took the next entry: %+v", left)
	}
	if err := next.Leave(ctx(t)); err != nil {
		t.Error(err)
	}
}

// The core asks for two TTLs and then leaves it to the store; the store leaves it to the
// session, which lives on. A renewal settles it.
func TestLeaveIsSettledByRenewals(t *testing.T) {
	b, p := spoiled(t, backends.SharedEtcd(t))
	s := session(t, b, 10*time.Second, nil)
	k := s.Ticket(whole("late-8", "late-8-a"))
	p.set(nil, puts("late-8-a"))
	if _, err := k.Enqueue(ctx(t)); !errors.Is(err, errPost) {
		t.Fatalf("enqueue: %v", err)
	}
	p.set(puts("~epoch/"), nil)
	for range 3 {
		if err := k.Leave(ctx(t)); !errors.Is(err, errPost) {
			t.Fatalf("leave: %v", err)
		}
	}
	p.set(nil, nil)
	if left := entries(t, b, "late-8"); len(left) != 1 {
		t.Fatalf("left: %+v", left)
	}
	alive(t, s)
	eventually(t, "nothing is left", func() bool { return len(entries(t, b, "late-8")) == 0 })
}

// The answer that moved the epoch on is lost as well: the other entries of the session
// find out by themselves, and still enter in one call.
func TestEpochAnswerLost(t *testing.T) {
	b, p := spoiled(t, backends.SharedEtcd(t))
	s := session(t, b, 10*time.Second, nil)
	k := s.Ticket(whole("late-4", "late-4-a"))
	p.set(puts("late-4-a"), nil)
	if _, err := k.Enqueue(ctx(t)); !errors.Is(err, errPost) {
		t.Fatalf("enqueue: %v", err)
	}
	p.set(nil, puts("~epoch/"))
	if err := k.Leave(ctx(t)); !errors.Is(err, errPost) {
		t.Fatalf("leave: %v", err)
	}
	p.set(nil, nil)
	other := s.Ticket(whole("late-4", "late-4-b"))
	if v, err := other.Enqueue(ctx(t)); err != nil || !v.Held {
		t.Fatalf("another entry: %+v, %v", v, err)
	}
	if err := k.Leave(ctx(t)); !errors.Is(err, driver.ErrGone) {
		t.Fatalf("leave again: %v", err)
	}
	if applied := p.deliver(t); applied[0] {
		t.Error("the late request was applied")
	}
	if left := entries(t, b, "late-4"); len(left) != 1 || left[0].ID != "late-4-b" {
		t.Errorf("left: %+v", left)
	}
	if err := other.Leave(ctx(t)); err != nil {
		t.Error(err)
	}
}

// S6: a publication that arrives after a later one does not undo it.
func TestLatePublish(t *testing.T) {
	b, p := spoiled(t, backends.SharedEtcd(t))
	s := session(t, b, 10*time.Second, nil)
	k := s.Ticket(whole("late-5", "late-5-a"))
	must[driver.Verdict](t)(k.Enqueue(ctx(t)))
	publish := k.(driver.Publisher).Publish
	p.set(puts("late-5-a"), nil)
	if err := publish(ctx(t), []byte("first")); !errors.Is(err, errPost) {
		t.Fatalf("publish: %v", err)
	}
	p.set(nil, puts("late-5-a"))
	if err := publish(ctx(t), []byte("second")); !errors.Is(err, errPost) {
		t.Fatalf("publish: %v", err)
	}
	p.set(nil, nil)
	if err := publish(ctx(t), []byte("third")); err != nil {
		t.Fatalf("publish: %v", err)
	}
	if applied := p.deliver(t); applied[0] {
		t.Error("the late publication was applied")
	}
	if list := entries(t, b, "late-5"); len(list) != 1 || string(list[0].Value) != "third" {
		t.Errorf("published: %+v", list)
	}
}

// Hazard 1, in the whole: Lock is cancelled in the middle of its request, whose fate
// nobody knows, while the client goes on to live and renew.
func TestCancelledLockLeavesNothing(t *testing.T) {
	b, p := spoiled(t, backends.SharedEtcd(t))
	c, err := hasp.New(b)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	release(t, must[*hasp.Lease](t)(c.Mutex("late-6").Lock(ctx(t)))) // a session is open
	const times = 10
	for range times {
		p.set(puts("late-6/"), nil)
		short, cancel := context.WithTimeout(ctx(t), 20*time.Millisecond)
		_, err := c.Mutex("late-6").Lock(short)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("lock: %v", err)
		}
		p.set(nil, nil)
	}
	eventually(t, "each has been left in the background", func() bool { return p.moved.Load() == times })
	p.deliver(t)
	if left := entries(t, b, "late-6"); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
}
