package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
)

// soon is what faults.md allows between a deletion and its news where a watch stands (a
// round trip and 50 ms), with room for a machine that does other things.
const soon = 2 * time.Second

// Hazard 13: the lease is renewed, the key is gone. The TTL is so long that a renewal
// cannot be what tells.
func TestDeletedKeyIsALoss(t *testing.T) {
	e := backends.SharedEtcd(t)
	c, raw := locks(t, storeURL([]*backends.Etcd{e}), hasp.WithTTL(time.Minute)), client(t, e.Addr)
	for _, age := range []time.Duration{0, 200 * time.Millisecond} {
		l := must[*hasp.Lease](t)(c.Mutex("loss-1").Lock(ctx(t)))
		time.Sleep(age) // an old lock has a watch, a young one does not yet
		remove(t, raw, "loss-1", l.ID())
		began := time.Now()
		<-l.Lost()
		if took := time.Since(began); took > soon {
			t.Errorf("at the age of %s the loss was told after %s", age, took)
		}
		var lost *hasp.LostError
		if !errors.As(l.Err(), &lost) || lost.Reason != hasp.Denied {
			t.Errorf("lost: %v", l.Err())
		}
		if err := l.Release(ctx(t)); !errors.Is(err, hasp.ErrLost) {
			t.Errorf("release: %v", err)
		}
	}
}

// S7: the peer says nil to an Unlock after the loss. The release of a lock that nobody has
// noticed to be lost must find out.
func TestReleaseAfterUnnoticedLoss(t *testing.T) {
	e := backends.SharedEtcd(t)
	c, raw := locks(t, storeURL([]*backends.Etcd{e}), hasp.WithTTL(time.Minute)), client(t, e.Addr)
	l := must[*hasp.Lease](t)(c.Mutex("loss-2").Lock(ctx(t)))
	remove(t, raw, "loss-2", l.ID())
	other := must[*hasp.Lease](t)(c.Mutex("loss-2").Lock(ctx(t)))
	if err := l.Release(ctx(t)); !errors.Is(err, hasp.ErrLost) {
		t.Errorf("release: %v", err)
	}
	if !other.Held() {
		t.Error("the late release took the next holder's lock")
	}
	release(t, other)
}

// A revoked lease takes holders and waiters with it at once: the session is gone, waiters
// queue up again in a new one.
func TestRevokedLease(t *testing.T) {
	e := backends.SharedEtcd(t)
	url, raw := storeURL([]*backends.Etcd{e}), client(t, e.Addr)
	c, other := locks(t, url, hasp.WithTTL(time.Minute)), locks(t, url)
	held := must[*hasp.Lease](t)(c.Mutex("loss-3-held").Lock(ctx(t)))
	blocker := must[*hasp.Lease](t)(other.Mutex("loss-3-wanted").Lock(ctx(t)))
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
	eventually(t, "one waits", func() bool { return waiting() != "" })
	first := waiting()
	time.Sleep(100 * time.Millisecond) // the holder's watch stands
	list := entries(t, c.Backend(), "loss-3-held")
	id, err := strconv.ParseInt(list[0].Session, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	must[*clientv3.LeaseRevokeResponse](t)(raw.Revoke(ctx(t), clientv3.LeaseID(id)))
	began := time.Now()
	<-held.Lost()
	if took := time.Since(began); took > soon {
		t.Errorf("the loss was told after %s", took)
	}
	eventually(t, "the waiter queues up again", func() bool { id := waiting(); return id != "" && id != first })
	release(t, blocker)
	release(t, <-got)
}

// An entry that is removed while it waits behind the holder alone is not granted when the
// holder leaves, although no read is made then.
func TestEvictedWaiterIsNotGranted(t *testing.T) {
	e := backends.SharedEtcd(t)
	b, raw := backend(t, storeURL([]*backends.Etcd{e})), client(t, e.Addr)
	for i := range 50 {
		name := fmt.Sprint("loss-4-", i)
		holder := session(t, b, time.Minute, nil).Ticket(whole(name, "a"))
		must[driver.Verdict](t)(holder.Enqueue(ctx(t)))
		waiter := session(t, b, time.Minute, nil).Ticket(whole(name, "b"))
		must[driver.Verdict](t)(waiter.Enqueue(ctx(t)))
		answer := make(chan error, 1)
		go func() {
			v, err := waiter.Wait(ctx(t))
			if err == nil && v.Held {
				err = errors.New("held")
			}
			answer <- err
		}()
		time.Sleep(time.Duration(i%10) * time.Millisecond) // with and without the watches standing
		remove(t, raw, name, "b")
		if err := holder.Leave(ctx(t)); err != nil {
			t.Fatal(err)
		}
		if err := <-answer; !errors.Is(err, driver.ErrGone) {
			t.Fatalf("round %d: %v", i, err)
		}
	}
}

// S5 of performance.md: ten thousand held locks are as cheap as one. All of them are
// watched, and the news of a deletion is still immediate.
func TestTenThousandHeld(t *testing.T) {
	if testing.Short() {
		t.Skip("ten thousand locks in a short run")
	}
	const n = 10_000
	e := backends.StartEtcd(t, backends.EtcdOptions{})
	c, raw := locks(t, storeURL([]*backends.Etcd{e})), client(t, e.Addr)
	release(t, must[*hasp.Lease](t)(c.Mutex("warm").Lock(ctx(t))))
	heap, goroutines := inUse(), runtime.NumGoroutine()
	held := make([]*hasp.Lease, n)
	var wg sync.WaitGroup
	for worker := range 64 {
		wg.Go(func() {
			for i := worker; i < n; i += 64 {
				l, err := c.Mutex(fmt.Sprint("many-", i)).Lock(context.Background())
				if err != nil {
					t.Error(err)
					return
				}
				held[i] = l
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	time.Sleep(time.Second)
	before := messages(t, e.Addr)
	time.Sleep(10 * time.Second) // one TTL
	after := messages(t, e.Addr)
	if d := total(after) - total(before); d > 100 {
		t.Errorf("%d messages in 10 s: %v after %v", d, after, before)
	}
	if n := runtime.NumGoroutine() - goroutines; n > 10 {
		t.Errorf("%d goroutines more", n)
	}
	each := int(inUse()-heap) / n
	t.Logf("%d bytes of heap for each held lock", each)
	if each > 2048 {
		t.Errorf("%d bytes of heap for each held lock", each)
	}
	victim := held[n/2]
	remove(t, raw, victim.Name(), victim.ID())
	began := time.Now()
	<-victim.Lost()
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
	return m.HeapAlloc
}
