package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
)

const faultTTL = 3 * time.Second

// healed is L2: how soon somebody must acquire after a fault is over.
const healed = faultTTL + 2*faultTTL/3 + 2*time.Second

// handOver has one client wait behind another, breaks something in the meantime, releases
// and returns how long the waiter took.
func handOver(t *testing.T, holder, waiter *hasp.Client, name string, meanwhile func()) time.Duration {
	t.Helper()
	l := must[*hasp.Lease](t)(holder.Mutex(name).Lock(ctx(t)))
	got := make(chan *hasp.Lease, 1)
	go func() {
		l, err := waiter.Mutex(name).Lock(ctx(t))
		if err != nil {
			t.Error(err)
		}
		got <- l
	}()
	eventually(t, "one waits", func() bool {
		q, err := holder.Inspect(ctx(t), name)
		return err == nil && len(q.Waiters) == 1
	})
	time.Sleep(100 * time.Millisecond) // its watch stands
	meanwhile()
	began := time.Now()
	// On a slow machine the fault may outlast trust: before the release, or during it.
	if err := l.Release(ctx(t)); err != nil && !errors.Is(err, hasp.ErrLost) && !errors.Is(err, hasp.ErrUnknown) {
		t.Fatalf("release: %v", err)
	}
	next := <-got
	took := time.Since(began)
	if next == nil {
		t.FailNow()
	}
	if l.Held() || !next.Held() || next.Token() <= l.Token() {
		t.Errorf("held %t and %t, tokens %d and %d", l.Held(), next.Held(), l.Token(), next.Token())
	}
	release(t, next)
	return took
}

func leader(t *testing.T, c *backends.EtcdCluster) int {
	t.Helper()
	for i, m := range c.Members {
		raw := client(t, m.Addr)
		s, err := raw.Status(ctx(t), m.URL())
		if err == nil && s.Leader == s.Header.MemberId {
			return i
		}
	}
	t.Fatal("no member leads")
	return 0
}

// One member of three hangs, each in its turn: that of the waiter's watch is among them.
// Nobody waits for a message that cannot come, nothing is lost.
func TestMemberPaused(t *testing.T) {
	cluster := backends.StartEtcdCluster(t, backends.EtcdOptions{})
	url := storeURL(cluster.Members)
	holder, waiter := locks(t, url, hasp.WithTTL(faultTTL)), locks(t, url, hasp.WithTTL(faultTTL))
	lead := leader(t, cluster)
	for i, m := range cluster.Members {
		took := handOver(t, holder, waiter, fmt.Sprint("paused-", i), func() {
			if err := m.Pause(); err != nil {
				t.Fatal(err)
			}
		})
		t.Logf("member %d paused (leader: %t): %s", i, i == lead, took)
		if took > healed {
			t.Errorf("member %d paused: the waiter took %s", i, took)
		}
		if err := m.Resume(); err != nil {
			t.Fatal(err)
		}
	}
}

// The leader is killed. etcd lets every lease begin anew with the next leader, so a lock
// that is held stays held, and nobody else gets it.
func TestLeaderKilled(t *testing.T) {
	cluster := backends.StartEtcdCluster(t, backends.EtcdOptions{})
	url := storeURL(cluster.Members)
	holder, other := locks(t, url, hasp.WithTTL(2*faultTTL)), locks(t, url, hasp.WithTTL(2*faultTTL))
	l := must[*hasp.Lease](t)(holder.Mutex("killed").Lock(ctx(t)))
	if err := cluster.Members[leader(t, cluster)].Kill(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(3 * faultTTL); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if !l.Held() {
			t.Fatalf("lost: %v", l.Err())
		}
		short, cancel := context.WithTimeout(ctx(t), 2*time.Second)
		_, err := other.Mutex("killed").TryLock(short)
		cancel()
		if err == nil {
			t.Fatal("locked twice")
		}
	}
	if took := handOver(t, other, holder, "killed-2", func() {}); took > 3*time.Second {
		t.Errorf("a hand-over between two members of three took %s", took)
	}
	release(t, l)
}

// The only member is killed and starts again. What was held is held or told as lost before
// anybody else has it; who waited acquires.
func TestServerRestarted(t *testing.T) {
	e := backends.StartEtcd(t, backends.EtcdOptions{})
	url := storeURL([]*backends.Etcd{e})
	holder, waiter := locks(t, url, hasp.WithTTL(faultTTL)), locks(t, url, hasp.WithTTL(faultTTL))
	for i, down := range []time.Duration{0, 2 * faultTTL} {
		took := handOver(t, holder, waiter, fmt.Sprint("restarted-", i), func() {
			if err := e.Kill(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(down)
			if err := e.Restart(); err != nil {
				t.Fatal(err)
			}
		})
		t.Logf("down for %s: %s", down, took)
		if took > healed {
			t.Errorf("down for %s: the waiter took %s", down, took)
		}
	}
}

// The server stands still for less than the trust in a lease, and for more than a TTL.
func TestServerPaused(t *testing.T) {
	e := backends.StartEtcd(t, backends.EtcdOptions{})
	url := storeURL([]*backends.Etcd{e})
	holder, waiter := locks(t, url, hasp.WithTTL(faultTTL)), locks(t, url, hasp.WithTTL(faultTTL))
	for i, pause := range []time.Duration{faultTTL / 3, 2 * faultTTL} {
		took := handOver(t, holder, waiter, fmt.Sprint("server-paused-", i), func() {
			if err := e.Pause(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(pause)
			if err := e.Resume(); err != nil {
				t.Fatal(err)
			}
		})
		t.Logf("paused for %s: %s", pause, took)
		if took > healed {
			t.Errorf("paused for %s: the waiter took %s", pause, took)
		}
	}
}

// A connection goes dead without a word, and new ones work: gRPC's own pings would take
// thirteen seconds to find out.
func TestSilentConnection(t *testing.T) {
	e := backends.SharedEtcd(t)
	for _, who := range []string{"holder", "waiter"} {
		p, err := faultnet.New(ctx(t), e.Addr)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		bad, good := "etcd://"+p.Addr(), storeURL([]*backends.Etcd{e})
		if who == "holder" {
			bad, good = good, bad
		}
		holder, waiter := locks(t, good, hasp.WithTTL(faultTTL)), locks(t, bad, hasp.WithTTL(faultTTL))
		took := handOver(t, holder, waiter, "silent-"+who, func() {
			p.Set(faultnet.Up, faultnet.Rule{Mode: faultnet.Drop})
			p.Set(faultnet.Down, faultnet.Rule{Mode: faultnet.Drop})
			time.Sleep(faultTTL / 2)
			p.Heal() // the old connection stays dead
		})
		t.Logf("the %s's connection: %s", who, took)
		if took > healed {
			t.Errorf("the %s's connection was dead: %s", who, took)
		}
	}
}

// What was sent during a partition arrives when it is over, long after everybody has given
// up on it: nobody is granted twice, nothing stays.
func TestHeldPartition(t *testing.T) {
	e := backends.SharedEtcd(t)
	p, err := faultnet.New(ctx(t), e.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	good := locks(t, storeURL([]*backends.Etcd{e}), hasp.WithTTL(faultTTL))
	cut := locks(t, "etcd://"+p.Addr(), hasp.WithTTL(faultTTL))
	l := must[*hasp.Lease](t)(cut.Mutex("partition").Lock(ctx(t)))
	p.Partition()
	short, cancel := context.WithTimeout(ctx(t), time.Second)
	defer cancel()
	began := time.Now()
	if _, err := cut.Mutex("partition-other").Lock(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("lock in a partition: %v", err)
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("a cancelled lock took %s", took)
	}
	next := must[*hasp.Lease](t)(good.Mutex("partition").Lock(ctx(t)))
	if l.Held() {
		t.Error("held twice")
	}
	p.Heal()
	eventually(t, "the cut client locks again", func() bool {
		l, err := cut.Mutex("partition-other").TryLock(ctx(t))
		return err == nil && l.Release(ctx(t)) == nil
	})
	time.Sleep(2 * faultTTL)
	if !next.Held() {
		t.Errorf("what came late took the next holder's lock: %v", next.Err())
	}
	for _, name := range []string{"partition", "partition-other"} {
		for _, left := range entries(t, good.Backend(), name) {
			if left.ID != next.ID() {
				t.Errorf("left: %+v", left)
			}
		}
	}
	release(t, next)
}

// L7: a server that is down is not hammered, however many want a lock.
func TestDeadServerIsNotHammered(t *testing.T) {
	e := backends.SharedEtcd(t)
	p, err := faultnet.New(ctx(t), e.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	c := locks(t, "etcd://"+p.Addr(), hasp.WithTTL(faultTTL))
	l := must[*hasp.Lease](t)(c.Mutex("hammer").Lock(ctx(t)))
	waiting, cancel := context.WithCancel(ctx(t))
	defer cancel()
	for i := range 64 {
		go func() {
			for waiting.Err() == nil {
				if l, err := c.Mutex(fmt.Sprint("hammer-", i%8)).Lock(waiting); err == nil {
					l.Release(waiting)
				}
				time.Sleep(10 * time.Millisecond)
			}
		}()
	}
	if err := p.Rebuff(); err != nil {
		t.Fatal(err)
	}
	p.Reset()
	before, seconds := p.Stats().Accepted, 6
	time.Sleep(time.Duration(seconds) * time.Second)
	if dials := p.Stats().Accepted - before; dials > 10*seconds {
		t.Errorf("%d dials in %d seconds", dials, seconds)
	}
	if l.Held() {
		t.Error("held by a client that has not reached its server for two TTLs")
	}
}

// The history behind a waiter is compacted while it waits, and while its stream is down.
func TestCompaction(t *testing.T) {
	e := backends.StartEtcd(t, backends.EtcdOptions{})
	p, err := faultnet.New(ctx(t), e.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	raw := client(t, e.Addr)
	compact := func() {
		t.Helper()
		for range 10 {
			must[*clientv3.PutResponse](t)(raw.Put(ctx(t), "other", "x"))
		}
		now := must[*clientv3.GetResponse](t)(raw.Get(ctx(t), "other"))
		must[*clientv3.CompactResponse](t)(raw.Compact(ctx(t), now.Header.Revision, clientv3.WithCompactPhysical()))
	}
	holder := locks(t, storeURL([]*backends.Etcd{e}), hasp.WithTTL(faultTTL))
	waiter := locks(t, "etcd://"+p.Addr(), hasp.WithTTL(faultTTL))
	if took := handOver(t, holder, waiter, "compacted-1", compact); took > soon {
		t.Errorf("compacted while waiting: %s", took)
	}
	took := handOver(t, holder, waiter, "compacted-2", func() {
		p.Cut()
		compact()
	})
	if took > healed {
		t.Errorf("compacted while cut off: %s", took)
	}
	// Far behind in a queue, a watch begins in the past, which may be compacted before the
	// server sees it. The reads of this ticket see to it that it is.
	b := backend(t, storeURL([]*backends.Etcd{e}))
	s := session(t, b, time.Minute, nil)
	var queue []driver.Ticket
	for i := range 60 {
		k := s.Ticket(whole("compacted-3", fmt.Sprint("c", i)))
		must[driver.Verdict](t)(k.Enqueue(ctx(t)))
		queue = append(queue, k)
	}
	compact()
	last := queue[len(queue)-1]
	done := make(chan error, 1)
	go func() {
		v, err := last.Wait(ctx(t))
		if err == nil && !v.Held {
			err = errors.New("not held")
		}
		done <- err
	}()
	for _, k := range queue[:len(queue)-1] {
		if err := k.Leave(ctx(t)); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The disk quota is used up: new locks are refused with the reason and the cure, those
// held are renewed, and can be released.
func TestNoSpace(t *testing.T) {
	e := backends.StartEtcd(t, backends.EtcdOptions{Config: map[string]any{"quota-backend-bytes": 1 << 20}})
	c, raw := locks(t, storeURL([]*backends.Etcd{e}), hasp.WithTTL(faultTTL)), client(t, e.Addr)
	l := must[*hasp.Lease](t)(c.Mutex("space").Lock(ctx(t)))
	b, p := spoiled(t, e)
	unsure := session(t, b, time.Minute, nil).Ticket(whole("space-0", "space-0-a"))
	p.set(nil, puts("space-0-a"))
	if _, err := unsure.Enqueue(ctx(t)); !errors.Is(err, errPost) {
		t.Fatalf("enqueue: %v", err)
	}
	for i := 0; ; i++ {
		if _, err := raw.Put(ctx(t), fmt.Sprint("fill-", i), strings.Repeat("x", 100_000)); err != nil {
			break // the alarm
		}
	}
	// One that has entered before the disk was full, and does not know, can be left.
	if err := unsure.Leave(ctx(t)); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("leave of a request of unknown outcome: %v", err)
	}
	if left := entries(t, b, "space-0"); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
	_, err := c.Mutex("space-2").Lock(ctx(t))
	if !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), "alarm disarm") {
		t.Errorf("lock without space: %v", err)
	}
	time.Sleep(2 * faultTTL)
	if !l.Held() {
		t.Errorf("lost: %v", l.Err())
	}
	findings := must[[]driver.Finding](t)(backend(t, storeURL([]*backends.Etcd{e})).Diagnose(ctx(t)))
	found := false
	for _, f := range findings {
		found = found || f.Level == driver.Bad && strings.Contains(f.Text, "NOSPACE") && f.Cure != ""
	}
	if !found {
		t.Errorf("the doctor has nothing to say: %+v", findings)
	}
	release(t, l)
}
