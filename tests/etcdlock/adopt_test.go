package etcdlock_test

import (
	"errors"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

func adopt(t testing.TB, k driver.Ticket, id string, seq uint64, want error) {
	t.Helper()
	v, err := k.(driver.Adopter).Adopt(ctx(t), id, seq)
	if !errors.Is(err, want) || want == nil && (err != nil || !v.Held || v.Token != seq) {
		t.Fatalf("adopt: %+v, %v, want %v", v, err, want)
	}
}

func held(t testing.TB, k driver.Ticket) (token uint64) {
	t.Helper()
	return testkit.Held(t, k).Token
}

func deletes(r *pb.TxnRequest) bool {
	for _, op := range r.Success {
		if op.GetRequestDeleteRange() != nil {
			return true
		}
	}
	return false
}

// L4: a request to adopt arrives when its caller has returned: the entry stays what it
// was, and is not attached to a lease that lives on.
func lateAdopt(l *late) {
	old := testkit.Session(l, l.b, calm, nil).Ticket(whole(l.name, l.name+"-a"))
	token := held(l, old)
	k := l.s.Ticket(whole(l.name, l.name+"-b"))
	l.p.set(puts(l.name+"-b"), nil)
	adopt(l, k, l.name+"-a", token, errIntercepted)
	l.p.set(nil, nil)
	l.leaves(k, driver.ErrGone)
	l.arrive(l.name + "-a")
}

// S1: what the old session still had under way arrives when the entry has been adopted.
func lateLeave(l *late) {
	old := l.s.Ticket(whole(l.name, l.name+"-a"))
	token := held(l, old)
	l.p.set(deletes, nil)
	l.leaves(old, errIntercepted)
	l.p.set(nil, nil)
	adopt(l, testkit.Session(l, l.b, calm, nil).Ticket(whole(l.name, l.name+"-b")), l.name+"-a", token, nil)
	l.arrive(l.name + "-b")
}

// The answer to a publication was lost: the release deletes what it made all the same.
func TestLeaveAfterUnansweredPublication(t *testing.T) {
	t.Parallel()
	b, p := spoiled(t, backends.SharedEtcd(t))
	k := testkit.Session(t, b, calm, nil).Ticket(whole("adopt-1", "adopt-1-a"))
	held(t, k)
	p.set(nil, puts("adopt-1-a"))
	if err := k.(driver.Publisher).Publish(ctx(t), []byte("x")); !errors.Is(err, errIntercepted) {
		t.Fatalf("publish: %v", err)
	}
	p.set(nil, nil)
	if err := k.Leave(ctx(t)); err != nil || len(entries(t, b, "adopt-1")) != 0 {
		t.Errorf("leave: %v, and the store has %v", err, entries(t, b, "adopt-1"))
	}
}

// S1, L4: an adopted entry lives and dies with the new session. The old one can be
// closed, and the server start anew, where it reads which key is attached to which lease; and the
// old session, which knows the key by its old name, can neither publish there nor take it for
// its next entry. What was not adopted goes with the old session: the control.
func TestAdoptedOutlivesOldSession(t *testing.T) {
	t.Parallel()
	for version, old := range map[string]bool{"new": false, "old": true} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			e := backends.StartEtcd(t, backends.EtcdOptions{Old: old})
			b := backend(t, storeURL([]*backends.Etcd{e}))
			before, after := testkit.Session(t, b, calm, nil), testkit.Session(t, b, calm, nil)
			first := before.Ticket(whole("a", "a-1"))
			token := held(t, first)
			held(t, before.Ticket(whole("left", "left-1")))
			adopted := after.Ticket(whole("a", "a-2"))
			adopt(t, adopted, "a-1", token, nil)

			if err := first.(driver.Publisher).Publish(ctx(t), []byte("x")); !errors.Is(err, driver.ErrGone) {
				t.Errorf("publish by the old session: %v", err)
			}
			if err := first.Leave(ctx(t)); !errors.Is(err, driver.ErrGone) {
				t.Errorf("leave by the old session: %v", err)
			}
			try := whole("a", "a-3")
			try.NoWait = true
			if v, err := before.Ticket(try).Enqueue(ctx(t)); err != nil || v.Held || v.Holder == "" {
				t.Errorf("the old session's next try: %+v, %v", v, err)
			}
			next := before.Ticket(whole("a", "a-4"))
			if v, err := next.Enqueue(ctx(t)); err != nil || v.Held {
				t.Errorf("the old session's next: %+v, %v", v, err)
			}
			if err := next.Leave(ctx(t)); err != nil {
				t.Errorf("the old session's next leaves: %v", err)
			}

			if err := e.Restart(); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "the old session is closed", func() bool { return before.Close(ctx(t)) == nil })
			if left := entries(t, b, "left"); len(left) != 0 {
				t.Errorf("the old session's other entry is there: %+v", left)
			}
			if there := entries(t, b, "a"); len(there) != 1 || there[0].ID != "a-2" || there[0].Seq != token {
				t.Fatalf("the adopted entry is not: %+v", there)
			}
			alive(t, after)
			if err := after.Close(ctx(t)); err != nil || len(entries(t, b, "a")) != 0 {
				t.Errorf("close of the new session: %v, and the store has %+v", err, entries(t, b, "a"))
			}
		})
	}
}

// The session that has adopted a key is told when it is deleted by hand.
func TestAdoptedIsWatched(t *testing.T) {
	t.Parallel()
	e := backends.SharedEtcd(t)
	b := backend(t, storeURL([]*backends.Etcd{e}))
	gone := make(chan string, 10)
	token := held(t, testkit.Session(t, b, calm, nil).Ticket(whole("adopt-2", "adopt-2-a")))
	s := testkit.Session(t, b, calm, func(id string, _ error) { gone <- id })
	adopt(t, s.Ticket(whole("adopt-2", "adopt-2-b")), "adopt-2-a", token, nil)
	remove(t, client(t, e.Addr), "adopt-2", "adopt-2-b")
	if id := testkit.Await(t, "the loss", gone); id != "adopt-2-b" {
		t.Errorf("told that %q is gone", id)
	}
}
