package zklock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
)

// answerLost runs do while the answer to the first request that matches is lost together
// with the connection.
func answerLost(t *testing.T, s *site, match func([]byte) bool, do func()) {
	t.Helper()
	cut := s.net[0].Lose(faultnet.Down, 1, match)
	do()
	testkit.Await(t, "such a request", cut)
}

func onLock(op byte) func([]byte) bool { // a request on an entry's node, of this type
	return func(chunk []byte) bool {
		return bytes.Contains(chunk, []byte{0, 0, 0, op}) && bytes.Contains(chunk, []byte("-lock-"))
	}
}

func listOf(node string) func([]byte) bool { // a request for the children of a node
	return func(chunk []byte) bool {
		return bytes.Contains(chunk, []byte(node)) && bytes.Contains(chunk, []byte{0, 0, 0, 12})
	}
}

// The answer to the create is lost: the node is found again and is the only one.
func TestCreateAnswerLost(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	s, name := newSite(t, calm, nil, z), uniqueName(t)
	testkit.Release(t, s.lock(t, name)) // the parent exists
	old := s.conn(t)
	var held *hasp.Lease
	answerLost(t, s, onLock(opCreate), func() { held = s.lock(t, name) })
	es := s.entries(t, name)
	if len(es) != 1 || es[0].ID != held.ID() || es[0].Seq != held.Token() || s.conn(t) != old {
		t.Errorf("entries %+v, holding %s with token %d", es, held.ID(), held.Token())
	}
	testkit.Release(t, held)
	if es := s.entries(t, name); len(es) != 0 {
		t.Errorf("left: %+v", es)
	}
}

// The answer to the list is lost, when the create's has arrived or not.
func TestListAnswerLost(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	s, name := newSite(t, calm, nil, z), uniqueName(t)
	testkit.Release(t, s.lock(t, name))
	var held *hasp.Lease
	answerLost(t, s, listOf("/"+name), func() { held = s.lock(t, name) })
	if es := s.entries(t, name); len(es) != 1 || es[0].ID != held.ID() {
		t.Errorf("entries %+v", es)
	}
	testkit.Release(t, held)
}

// The answer to the delete is lost: the release is still confirmed, by the next attempt.
func TestDeleteAnswerLost(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	s, name := newSite(t, calm, nil, z), uniqueName(t)
	held := s.lock(t, name)
	answerLost(t, s, onLock(2), func() { testkit.Release(t, held) })
	testkit.Release(t, s.lock(t, name))
}

// The control: the same losses with the client library's calls alone, as a simple lock uses them.
// Each returns an error to its caller and leaves an entry in the store that the caller does not
// know of.
func TestAnswerLostUnnoticed(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	p := testkit.Proxy(t, z.Addr)
	s, plain, a := &site{net: []*faultnet.Proxy{p}}, connect(t, p.Addr()), admin(t, z)
	parent := "/" + uniqueName(t)
	if _, err := plain.Create(parent, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	answerLost(t, s, onLock(opCreate), func() {
		if node, err := plain.Create(parent+"/plain-lock-", nil, zk.FlagEphemeralSequential, zk.WorldACL(zk.PermAll)); err == nil {
			t.Errorf("created %s, and the answer has arrived", node)
		}
	})
	orphan := onlyChild(t, a, parent)
	connected := func() { // else the library fails before it sends
		testkit.Eventually(t, "the client to be connected again", func() bool {
			_, _, err := plain.Exists(parent)
			return err == nil
		})
	}
	connected()
	answerLost(t, s, onLock(2), func() {
		if err := plain.Delete(parent+"/"+orphan, -1); err == nil {
			t.Error("deleted, and the answer has arrived")
		}
	})
	if names, _, err := a.Children(parent); err != nil || len(names) != 0 {
		t.Errorf("children %q, %v", names, err)
	}
	l := zk.NewLock(plain, parent, zk.WorldACL(zk.PermAll))
	connected()
	answerLost(t, s, listOf(parent), func() {
		if err := l.Lock(); err == nil {
			t.Error("the library's lock was acquired, and the answer to its list has arrived")
		}
	})
	onlyChild(t, a, parent) // nothing will delete it as long as the session lives
}

// After a create without an answer only our own node is adopted. IDs are used once, so that
// a node of the same guid in another session has no right to be there, and yet.
func TestAdoptsOwnNodeOnly(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	b := patient(t, nil, z.Addr)
	s, a, name := openSession(t, b, calm), admin(t, z), uniqueName(t)
	first := s.Ticket(testkit.RequestAs(name, "first"))
	if _, err := first.Enqueue(t.Context()); err != nil { // the lock's node exists
		t.Fatal(err)
	}
	k := s.Ticket(testkit.RequestAs(name, "second")).(*ticket)
	if _, err := a.Create(k.path, nil, zk.FlagEphemeralSequential, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	if node, czxid, err := k.search(t.Context()); node != "" || err != nil {
		t.Errorf("adopted %s, %d, of another session: %v", node, czxid, err)
	}
	made, err := s.zk.Create(k.path, nil, zk.FlagEphemeralSequential, zk.WorldACL(zk.PermAll))
	if err != nil {
		t.Fatal(err)
	}
	if node, czxid, err := k.search(t.Context()); node != made || czxid == 0 || err != nil {
		t.Errorf("found %s, %d, %v; want %s", node, czxid, err, made)
	}
}

// A caller gives up while its create is held up in the network. The node that it makes
// when the network delivers must go, although the session lives on.
func TestCreateDeliveredLate(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	s, name := newSite(t, calm, nil, z), uniqueName(t)
	testkit.Release(t, s.lock(t, name))
	c := s.conn(t)
	for _, hold := range []faultnet.Direction{faultnet.Up, faultnet.Down} {
		s.net[0].Set(hold, faultnet.Rule{Mode: faultnet.Hold})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		began := time.Now()
		_, err := s.Mutex(name).Lock(ctx)
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took > patience { // nothing else ends it, but the session
			t.Errorf("%s held: %v after %s", hold, err, took)
		}
		cancel()
		s.net[0].Heal()
		other := newSite(t, calm, nil, z)
		testkit.Eventually(t, "nothing left", func() bool { return len(other.entries(t, name)) == 0 })
		testkit.Release(t, other.lock(t, name))
		if s.conn(t) != c {
			t.Errorf("%s held: the session has been replaced", hold)
		}
	}
}

// Every method returns soon after its context has ended, with every fault of the network.
func TestReturnsWithContext(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	s := newSite(t, calm, nil, z)
	d := openSession(t, s.b, calm)
	name := uniqueName(t)
	held := d.Ticket(testkit.RequestAs(name, "held"))
	waits := d.Ticket(testkit.RequestAs(name, "waits"))
	for _, k := range []driver.Ticket{held, waits} {
		if _, err := k.Enqueue(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.net[0].Partition()
	for _, c := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"Open", func(ctx context.Context) error { _, _, err := s.b.Open(ctx, d.opts); return err }},
		{"KeepAlive", func(ctx context.Context) error { _, err := d.KeepAlive(ctx); return err }},
		{"Enqueue", func(ctx context.Context) error {
			_, err := d.Ticket(testkit.RequestAs(name, "new")).Enqueue(ctx)
			return err
		}},
		{"Wait", func(ctx context.Context) error { _, err := waits.Wait(ctx); return err }},
		{"Publish", func(ctx context.Context) error { return held.(*ticket).Publish(ctx, nil) }},
		{"List", func(ctx context.Context) error { _, err := s.b.List(ctx, name, 0); return err }},
		{"Names", func(ctx context.Context) error { return s.b.Names(ctx, "", func(string) bool { return true }) }},
		{"Watch", func(ctx context.Context) error { return s.b.Watch(ctx, name, func() {}) }},
		{"Evict", func(ctx context.Context) error { return s.b.Evict(ctx, name, "held", "") }},
		{"Leave", held.Leave}, // after it nothing is published
		{"Close", d.Close},    // ends all others
	} {
		inTime(t, c.what, c.do)
	}
}

func inTime(t *testing.T, what string, do func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := do(ctx)
	deadline, _ := ctx.Deadline()
	// 100 ms are the driver's; the rest is for a machine that does other things. Nothing else ends
	// what does not heed its context, but the session.
	if late := time.Since(deadline); late > patience || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%s: %v, %s after the end of its context", what, err, late)
	}
}

// A session ends while a request that has nothing to do with it travels on its connection.
// That is no answer: ErrGone from Evict would say that there is no such entry.
func TestSessionEndsUnderRequest(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	s, other, name := newSite(t, calm, nil, z), newSite(t, calm, nil, z), uniqueName(t)
	held := other.lock(t, name)
	for what, do := range map[string]func() error{
		"List": func() error {
			es, err := s.b.List(t.Context(), name, 0)
			if err == nil && len(es) != 1 {
				err = fmt.Errorf("listed %+v", es)
			}
			return err
		},
		"Names": func() error {
			listed := false
			err := s.b.Names(t.Context(), name, func(string) bool { listed = true; return true })
			if err == nil && !listed {
				err = errors.New("not listed")
			}
			return err
		},
		"Diagnose": func() error { _, err := s.b.Diagnose(t.Context()); return err },
	} {
		if err := s.under(t, do); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	evict := func() error { return s.b.Evict(t.Context(), name, held.ID(), "note") }
	if err := s.under(t, evict); err != nil {
		t.Errorf("Evict: %v", err)
	}
	lost(t, held, hasp.ReasonDenied)
	if err := s.under(t, evict); !errors.Is(err, driver.ErrGone) {
		t.Errorf("Evict of an unknown entry: %v", err)
	}
}

// under makes a request while the answers are held up and the only session ends.
func (s *site) under(t *testing.T, do func() error) error {
	t.Helper()
	d := openSession(t, s.b, calm)
	s.net[0].Set(faultnet.Down, faultnet.Rule{Mode: faultnet.Hold})
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		t.Fatalf("answered, %v, although nothing is delivered", err)
	case <-time.After(50 * time.Millisecond):
	}
	d.conn.abandon()
	s.net[0].Heal()
	return <-done
}

// The answer to the close of a session comes later than the library waits for it, which is
// a second: the close is confirmed all the same.
func TestCloseAnsweredLate(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	s := newSite(t, calm, nil, z)
	d := openSession(t, s.b, calm)
	s.net[0].Set(faultnet.Down, faultnet.Rule{Mode: faultnet.Hold})
	done := make(chan error, 1)
	go func() { done <- d.Close(t.Context()) }()
	select {
	case err := <-done:
		t.Fatalf("closed, %v, although nothing is delivered", err)
	case <-time.After(1500 * time.Millisecond):
	}
	s.net[0].Heal()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A broken connection is not reported to a caller whose context has ended; an answer is.
func TestEndedFirst(t *testing.T) {
	t.Parallel()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	broken := errors.New("use of closed network connection")
	for _, c := range []struct {
		ctx       context.Context
		err, want error
	}{
		{t.Context(), broken, broken}, {over, broken, context.Canceled},
		{over, zk.ErrNoNode, zk.ErrNoNode}, {over, nil, nil},
	} {
		if got := endedFirst(c.ctx, c.err); got != c.want {
			t.Errorf("%v with %v: %v", c.err, c.ctx.Err(), got)
		}
	}
}
