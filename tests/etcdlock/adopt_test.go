package etcdlock_test

import (
	"context"
	"errors"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/etcdlock"
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

// L4: a request to adopt arrives when the importer has returned: the entry stays what it
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

// S1: what the exporter still had under way arrives when the entry has been adopted.
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

// S1, L4: an adopted entry lives and dies with the importer's session. The exporter's can be
// closed, and the server start anew, where it reads which key is attached to which lease; and the
// exporter, who knows the key by its old name, can neither publish there nor take it for its
// own next entry. What was not adopted goes with the exporter: the control.
func TestAdoptedOutlivesExporter(t *testing.T) {
	t.Parallel()
	for version, old := range map[string]bool{"new": false, "old": true} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			e := backends.StartEtcd(t, backends.EtcdOptions{Old: old})
			b := backend(t, storeURL([]*backends.Etcd{e}))
			exporter, importer := testkit.Session(t, b, calm, nil), testkit.Session(t, b, calm, nil)
			first := exporter.Ticket(whole("a", "a-1"))
			token := held(t, first)
			held(t, exporter.Ticket(whole("left", "left-1")))
			adopted := importer.Ticket(whole("a", "a-2"))
			adopt(t, adopted, "a-1", token, nil)

			if err := first.(driver.Publisher).Publish(ctx(t), []byte("x")); !errors.Is(err, driver.ErrGone) {
				t.Errorf("publish by the exporter: %v", err)
			}
			if err := first.Leave(ctx(t)); !errors.Is(err, driver.ErrGone) {
				t.Errorf("leave by the exporter: %v", err)
			}
			try := whole("a", "a-3")
			try.NoWait = true
			if v, err := exporter.Ticket(try).Enqueue(ctx(t)); err != nil || v.Held || v.Holder == "" {
				t.Errorf("the exporter's next try: %+v, %v", v, err)
			}
			next := exporter.Ticket(whole("a", "a-4"))
			if v, err := next.Enqueue(ctx(t)); err != nil || v.Held {
				t.Errorf("the exporter's next: %+v, %v", v, err)
			}
			if err := next.Leave(ctx(t)); err != nil {
				t.Errorf("the exporter's next leaves: %v", err)
			}

			if err := e.Restart(); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "the exporter's session is closed", func() bool { return exporter.Close(ctx(t)) == nil })
			if left := entries(t, b, "left"); len(left) != 0 {
				t.Errorf("the exporter's other entry is there: %+v", left)
			}
			if there := entries(t, b, "a"); len(there) != 1 || there[0].ID != "a-2" || there[0].Seq != token {
				t.Fatalf("the adopted entry is not: %+v", there)
			}
			alive(t, importer)
			if err := importer.Close(ctx(t)); err != nil || len(entries(t, b, "a")) != 0 {
				t.Errorf("close of the importer: %v, and the store has %+v", err, entries(t, b, "a"))
			}
		})
	}
}

// The importer is told when the key is deleted by hand, and guards its writes as the one who
// made it would.
func TestAdoptedIsWatchedAndStillHeld(t *testing.T) {
	t.Parallel()
	e := backends.SharedEtcd(t)
	url := storeURL([]*backends.Etcd{e})
	c, other, raw := testkit.Client(t, url), testkit.Client(t, url), client(t, e.Addr)
	l, err := c.Mutex("adopt-2").Lock(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	text, err := l.Export()
	if err != nil {
		t.Fatal(err)
	}
	got, err := other.Import(ctx(t), text)
	if err != nil {
		t.Fatal(err)
	}
	guard := other.Backend().(*etcdlock.Backend).StillHeld(got)
	guarded := func() bool {
		resp, err := raw.Txn(context.Background()).If(guard).Commit()
		return err == nil && resp.Succeeded
	}
	if !guarded() {
		t.Error("the importer may not write")
	}
	remove(t, raw, "adopt-2", got.ID())
	select {
	case <-got.Lost():
	case <-ctx(t).Done():
		t.Error("the importer was not told of the loss")
	}
	if guarded() {
		t.Error("a write after the loss was applied")
	}
}
