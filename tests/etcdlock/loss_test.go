package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// soon is a bound for what takes a round trip or two, with room for a machine that does
// other things. What it must be told from takes a third of calm, or has no end.
const soon = time.Minute

// Hazard 13: the lease is renewed, the key is gone. The TTL is so long that a renewal
// cannot be what tells.
func TestDeletedKeyIsALoss(t *testing.T) {
	t.Parallel()
	e := backends.SharedEtcd(t)
	c, raw := testkit.Client(t, storeURL([]*backends.Etcd{e}), hasp.WithTTL(calm)), client(t, e.Addr)
	for _, age := range []time.Duration{0, 200 * time.Millisecond} {
		l := testkit.Lock(t, c, "loss-1")
		time.Sleep(age) // an old lock has a watch, a young one does not yet
		remove(t, raw, "loss-1", l.ID())
		began := time.Now()
		<-l.Context().Done()
		if took := time.Since(began); took > soon {
			t.Errorf("at the age of %s the loss was told after %s", age, took)
		}
		var lost *hasp.LostError
		if !errors.As(l.Err(), &lost) || lost.Reason != hasp.ReasonDenied {
			t.Errorf("lost: %v", l.Err())
		}
		if err := l.Release(ctx(t)); !errors.Is(err, hasp.ErrLost) {
			t.Errorf("release: %v", err)
		}
	}
}

// A revoked lease takes holders and waiters with it at once: the session is gone, waiters
// queue up again in a new one.
func TestRevokedLease(t *testing.T) {
	t.Parallel()
	e := backends.SharedEtcd(t)
	url, raw := storeURL([]*backends.Etcd{e}), client(t, e.Addr)
	c, other := testkit.Client(t, url, hasp.WithTTL(calm)), testkit.Client(t, url)
	held := testkit.Lock(t, c, "loss-3-held")
	blocker := testkit.Lock(t, other, "loss-3-wanted")
	got := make(chan *hasp.Lease, 1)
	go func() {
		l, err := c.Mutex("loss-3-wanted").Lock(ctx(t))
		if err != nil {
			t.Error(err)
		}
		got <- l
	}()
	waiting := func() string {
		q, err := c.Inspect(ctx(t), "loss-3-wanted")
		if err != nil || len(q.Waiters) != 1 {
			return ""
		}
		return q.Waiters[0].ID
	}
	testkit.Eventually(t, "one waits", func() bool { return waiting() != "" })
	first := waiting()
	time.Sleep(100 * time.Millisecond) // the holder's watch is established
	list := entries(t, c.Backend(), "loss-3-held")
	id, err := strconv.ParseInt(list[0].Session, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Must[*clientv3.LeaseRevokeResponse](t)(raw.Revoke(ctx(t), clientv3.LeaseID(id)))
	began := time.Now()
	<-held.Context().Done()
	if took := time.Since(began); took > soon {
		t.Errorf("the loss was told after %s", took)
	}
	testkit.Eventually(t, "the waiter queues up again", func() bool { id := waiting(); return id != "" && id != first })
	testkit.Release(t, blocker)
	testkit.Release(t, <-got)
}

// An entry that is removed while it waits is told so, and not granted when the holder leaves,
// although no read is made then. If the holder leaves at the same moment, it may be granted: the
// two deletions are told by two watches. Then the grant is taken back with the next message, as
// from a holder that is evicted.
func TestEvictedWaiterIsNotGranted(t *testing.T) {
	t.Parallel()
	e := backends.SharedEtcd(t)
	b, raw := backend(t, storeURL([]*backends.Etcd{e})), client(t, e.Addr)
	for i := range 50 {
		name := fmt.Sprint("loss-4-", i)
		told := make(chan struct{}, 9)
		holder := testkit.Session(t, b, calm, nil).Ticket(whole(name, "a"))
		held(t, holder)
		waiter := testkit.Session(t, b, calm, func(string, error) { told <- struct{}{} }).Ticket(whole(name, "b"))
		answer := waitsFor(t, waiter)
		time.Sleep(time.Duration(i%10) * 5 * time.Millisecond) // with and without a watch on its key
		remove(t, raw, name, "b")
		if i%2 == 0 {
			if err := testkit.Await(t, "who waits is told", answer); !errors.Is(err, driver.ErrGone) {
				t.Fatalf("round %d: %v", i, err)
			}
			left(t, holder)
			continue
		}
		left(t, holder)
		switch err := testkit.Await(t, "an answer", answer); {
		case err == nil:
			testkit.Await(t, "it is granted, and told that it has gone", told)
		case !errors.Is(err, driver.ErrGone):
			t.Fatalf("round %d: %v", i, err)
		}
	}
}

// S5 of performance.md: ten thousand held locks are as cheap as one. All of them are
// watched, and the message of a deletion still comes at once.
func TestTenThousandHeld(t *testing.T) {
	testtier.Long(t)
	const n, askAtOnce = 10_000, 64
	e := backends.StartEtcd(t, backends.EtcdOptions{})
	c, raw := testkit.Client(t, storeURL([]*backends.Etcd{e}), hasp.WithTTL(steady)), client(t, e.Addr)
	testkit.Release(t, testkit.Lock(t, c, "warm"))
	memory, goroutines := inUse(), runtime.NumGoroutine()
	held := make([]*hasp.Lease, n)
	byMany(t, n, func(i int) (err error) {
		held[i], err = c.Mutex(fmt.Sprint("many-", i)).Lock(context.Background())
		return err
	})
	if t.Failed() {
		t.FailNow()
	}
	// Each is watched and then looked for, in batches.
	before := map[string]int64{}
	watched := func() bool {
		was := total(before)
		time.Sleep(200 * time.Millisecond)
		before = messages(t, e.Addr)
		return before["Watch"] >= n && total(before) == was
	}
	// A busy machine needs more than a minute for the 20,000 requests.
	for end := time.Now().Add(5 * testkit.Patience); !watched(); {
		if time.Now().After(end) {
			t.Fatalf("not all are watched, or it is never quiet: %v", before)
		}
	}
	began := time.Now()
	time.Sleep(8 * time.Second) // more than from one renewal to the next
	after := messages(t, e.Addr)
	// What remains is a message for each renewal, and a look at all of the keys.
	if d := float64(total(after) - total(before)); d > n/askAtOnce+2*time.Since(began).Seconds() {
		t.Errorf("%.0f messages in %s: %v after %v", d, time.Since(began), after, before)
	}
	// clientv3's watch has a goroutine, and we have one to listen to it.
	if m := runtime.NumGoroutine() - goroutines; m > 2*n+20 {
		t.Errorf("%d goroutines more", m)
	}
	each := int(inUse()-memory) / n
	t.Logf("%d bytes for each held lock", each)
	if each > 20<<10 { // 12 KB without the race detector, 16.5 with it
		t.Errorf("%d bytes for each held lock", each)
	}
	victim := held[n/2]
	remove(t, raw, victim.Name(), victim.ID())
	began = time.Now()
	<-victim.Context().Done()
	if took := time.Since(began); took > soon {
		t.Errorf("the loss of one was told after %s", took)
	}
	for i, l := range held {
		if l != victim && !l.Held() {
			t.Fatalf("lock %d is lost: %v", i, l.Err())
		}
	}
}

func inUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}
