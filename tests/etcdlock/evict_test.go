package etcdlock_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/etcdlock"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// noted returns the key of the note, or nil.
func noted(t testing.TB, c *clientv3.Client, name string) *mvccpb.KeyValue {
	t.Helper()
	resp := testkit.Must[*clientv3.GetResponse](t)(c.Get(ctx(t), "hasp/~evicted/"+name))
	if len(resp.Kvs) == 0 {
		return nil
	}
	return resp.Kvs[0]
}

func lastEviction(t testing.TB, b *etcdlock.Backend, name, want string) {
	t.Helper()
	if note, err := b.LastEviction(ctx(t), name); note != want || err != nil {
		t.Errorf("last eviction: %q, %v, want %q", note, err, want)
	}
}

// The note blocks no client, etcdctl included, and no name.
func TestEvictionNoteIsNoEntry(t *testing.T) {
	t.Parallel()
	e := backends.SharedEtcd(t)
	c, raw := testkit.Client(t, storeURL([]*backends.Etcd{e})), client(t, e.Addr)
	l := testkit.Lock(t, c, "evict-1")
	if err := c.Evict(ctx(t), "evict-1", l.ID(), "test"); err != nil {
		t.Fatal(err)
	}
	kv := noted(t, raw, "evict-1")
	if kv == nil {
		t.Fatal("no note")
	}
	ttl := testkit.Must[*clientv3.LeaseTimeToLiveResponse](t)(raw.TimeToLive(ctx(t), clientv3.LeaseID(kv.Lease)))
	if left := time.Duration(ttl.TTL) * time.Second; left > 24*time.Hour || left < 23*time.Hour {
		t.Errorf("the note is kept for %s", left)
	}
	for name, err := range c.Names(ctx(t), "") {
		if err != nil {
			t.Fatal(err)
		}
		if name == "evict-1" || strings.Contains(name, "evicted") {
			t.Errorf("a name without entries: %q", name)
		}
	}
	// A semaphore compares all there is under the name before it enters, etcdctl waits for it.
	testkit.Release(t, testkit.Must[*hasp.Lease](t)(c.Semaphore("evict-1", 3).Acquire(ctx(t), 3)))
	held, _ := etcdctlLock(t, e.Addr, "hasp/evict-1")
	await(t, "etcdctl holds, with only the note there", held)
}

// A change of the note wakes no watcher of the name. The key in the name's range that
// is put after it is the control: that one is told of, and nothing before it.
func TestEvictionNoteWakesNobody(t *testing.T) {
	t.Parallel()
	e := backends.SharedEtcd(t)
	b, raw := backend(t, storeURL([]*backends.Etcd{e})), client(t, e.Addr)
	following, stop := context.WithCancel(ctx(t))
	var told atomic.Int32
	done := make(chan error, 1)
	go func() { done <- b.Watch(following, "evict-2", func() { told.Add(1) }) }()
	testkit.Eventually(t, "the watch is established", func() bool { return told.Load() == 1 })
	for _, key := range []string{"hasp/~evicted/evict-2", "hasp/evict-2/control"} {
		testkit.Must[*clientv3.PutResponse](t)(raw.Put(ctx(t), key, "x"))
		defer raw.Delete(context.Background(), key)
	}
	testkit.Eventually(t, "told of the control", func() bool { return told.Load() > 1 })
	if n := told.Load(); n != 2 {
		t.Errorf("told %d times", n)
	}
	stop()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("watch: %v", err)
	}
}

// A note goes with its own lease, and not with that of the note before it.
func TestEvictionNoteGoesWithItsLease(t *testing.T) {
	t.Parallel()
	e := backends.SharedEtcd(t)
	b, raw := backend(t, storeURL([]*backends.Etcd{e})), client(t, e.Addr)
	s := testkit.Session(t, b, calm, nil)
	var leases []clientv3.LeaseID
	for _, id := range []string{"evict-3-a", "evict-3-b"} {
		held(t, s.Ticket(whole("evict-3", id)))
		if err := b.Evict(ctx(t), "evict-3", id, "note of "+id); err != nil {
			t.Fatal(err)
		}
		leases = append(leases, clientv3.LeaseID(noted(t, raw, "evict-3").Lease))
	}
	for i, want := range []string{"note of evict-3-b", ""} {
		testkit.Must[*clientv3.LeaseRevokeResponse](t)(raw.Revoke(ctx(t), leases[i]))
		lastEviction(t, b, "evict-3", want)
	}
}

// The answer to the eviction is lost: it was done all the same, with its note, and is not
// done again.
func TestEvictionAnswerLost(t *testing.T) {
	t.Parallel()
	b, p := spoiled(t, backends.SharedEtcd(t))
	held(t, testkit.Session(t, b, calm, nil).Ticket(whole("evict-4", "evict-4-a")))
	p.set(nil, puts("~evicted/"))
	if err := b.Evict(ctx(t), "evict-4", "evict-4-a", "first"); !errors.Is(err, errIntercepted) {
		t.Fatalf("evict: %v", err)
	}
	p.set(nil, nil)
	if err := b.Evict(ctx(t), "evict-4", "evict-4-a", "second"); !errors.Is(err, driver.ErrGone) {
		t.Errorf("evict again: %v", err)
	}
	lastEviction(t, b, "evict-4", "first")
}

// S6: an eviction arrives when its caller has returned and the entry has changed since, as
// it does when another adopts it: it takes nothing away, and leaves no note.
func lateEvict(l *late) {
	id := l.name + "-a"
	k := l.s.Ticket(whole(l.name, id))
	l.holds(k)
	l.p.set(puts("~evicted/"), nil)
	if err := l.b.Evict(ctx(l), l.name, id, "too late"); !errors.Is(err, errIntercepted) {
		l.Fatalf("evict: %v", err)
	}
	l.p.set(nil, nil)
	if err := k.(driver.Publisher).Publish(ctx(l), []byte("x")); err != nil {
		l.Fatal(err)
	}
	l.arrive(id)
	if note, err := l.b.LastEviction(ctx(l), l.name); note != "" || err != nil {
		l.complain("last eviction: %q, %v", note, err)
	}
}

// A held lock that was evicted leaves no watch behind, which the server would have to keep as long
// as the client lives: the core makes no Leave of it. That of a lock that is still held stays.
func TestEvictedIsNotWatched(t *testing.T) {
	t.Parallel()
	b, count := countsWatches(t, backends.SharedEtcd(t))
	gone := make(chan string, 9)
	s := testkit.Session(t, b, calm, func(id string, _ error) { gone <- id })
	for _, name := range []string{"evict-5", "evict-5-stays"} {
		held(t, s.Ticket(whole(name, name)))
	}
	testkit.Eventually(t, "both keys are watched", func() bool { return count.established.Load() == 3 }) // and the one that keeps the stream
	evict := func(name string) {
		t.Helper()
		if err := b.Evict(ctx(t), name, name, ""); err != nil {
			t.Fatal(err)
		}
		if id := testkit.Await(t, "an evicted holder is told", gone); id != name {
			t.Fatalf("told of %q", id)
		}
	}
	evict("evict-5")
	for range 3 {
		alive(t, s)
	}
	testkit.Eventually(t, "its watch is ended, as one that is kept", func() bool { return count.ended.Load() == 1 })
	// The next of the name has the same key, and what becomes of it is told of no other: messages
	// come in order.
	k := s.Ticket(whole("evict-5", "next"))
	held(t, k)
	left(t, k)
	evict("evict-5-stays")
}

// A role that reaches no further than one name's entries and the epochs can evict, and no
// note is kept; nor can it read one.
func TestEvictWithoutPermissionForNotes(t *testing.T) {
	t.Parallel()
	e := guarded(t)
	root := as(t, e, "root")
	testkit.Must[*clientv3.AuthRoleAddResponse](t)(root.RoleAdd(ctx(t), "few"))
	for _, of := range []string{"hasp/few/", "hasp/~epoch/"} {
		testkit.Must[*clientv3.AuthRoleGrantPermissionResponse](t)(root.RoleGrantPermission(ctx(t), "few", of,
			clientv3.GetPrefixRangeEnd(of), clientv3.PermissionType(clientv3.PermReadWrite)))
	}
	testkit.Must[*clientv3.AuthUserAddResponse](t)(root.UserAdd(ctx(t), "few", secret))
	testkit.Must[*clientv3.AuthUserGrantRoleResponse](t)(root.UserGrantRole(ctx(t), "few", "few"))

	holder := testkit.Client(t, "etcd://locks:pa%20ss%2Fword@"+e.Addr, hasp.WithTTL(calm))
	l := testkit.Lock(t, holder, "few")
	b := testkit.Must[*etcdlock.Backend](t)(etcdlock.New(as(t, e, "few"), nil))
	if err := b.Evict(ctx(t), "few", l.ID(), "note"); err != nil {
		t.Fatalf("evict: %v", err)
	}
	await(t, "the evicted holder is told", l.Context().Done())
	if _, err := b.LastEviction(ctx(t), "few"); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("last eviction: %v", err)
	}
	if got, err := holder.LastEviction(ctx(t), "few"); got != nil || err != nil {
		t.Errorf("last eviction, for one who may read it: %+v, %v", got, err)
	}
}
