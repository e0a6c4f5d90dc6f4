package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/broken"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// What goes wrong at the servers. Trouble on the way to them is in network_test.go, and all
// of it at once in randomfaults_test.go.

const faultTTL = 3 * time.Second

// healed is L2, how soon a waiter must acquire after a fault is over, with room for a
// machine that does other things.
const healed = 4*(faultTTL+2*faultTTL/3+2*time.Second) + 30*time.Second

// steady is a TTL for locks that must outlive a fault. Trust in it does not end because a
// machine stalls for some seconds; it is renewed every five.
const steady = 15 * time.Second

// leader returns which member leads, as soon as one does.
func leader(t *testing.T, c *backends.EtcdCluster) (lead int) {
	t.Helper()
	testkit.Eventually(t, "a member leads", func() bool {
		for i, m := range c.Members {
			if s := status(t, m); s != nil && s.Leader == s.Header.MemberId {
				lead = i
				return true
			}
		}
		return false
	})
	return lead
}

// status asks a member; nil if it does not answer.
func status(t *testing.T, m *backends.Etcd) *clientv3.StatusResponse {
	t.Helper()
	short, cancel := context.WithTimeout(ctx(t), time.Second)
	defer cancel()
	s, err := client(t, m.Addr).Status(short, m.URL())
	if err != nil {
		return nil
	}
	return s
}

// One member of three hangs, each in its turn: that of the waiter's watch is among them.
// No client waits for a message that cannot come, and none holds what another has.
func TestMemberPaused(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	cluster := backends.StartEtcdCluster(t, backends.EtcdOptions{})
	url := storeURL(cluster.Members)
	holder, waiter := testkit.Client(t, url, hasp.WithTTL(faultTTL)), testkit.Client(t, url, hasp.WithTTL(faultTTL))
	lead := leader(t, cluster)
	for i, m := range cluster.Members {
		t.Logf("member %d is paused (leader at first: %t)", i, i == lead)
		handOver{holder: holder, waiter: waiter, name: fmt.Sprint("paused-", i), meanwhile: func() {
			if err := m.Pause(); err != nil {
				t.Fatal(err)
			}
		}}.passes(t)
		if err := m.Resume(); err != nil {
			t.Fatal(err)
		}
	}
}

// The leader is killed. etcd lets every lease begin anew with the next leader, so a lock
// that is held stays held, and no other client gets it. The control does not renew, and is
// found out.
func TestLeaderKilled(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	cluster := backends.StartEtcdCluster(t, backends.EtcdOptions{})
	url := storeURL(cluster.Members)
	other := testkit.Client(t, url, hasp.WithTTL(steady))
	renewals := &tally{}
	holder := testkit.Client(t, url, hasp.WithTTL(steady), hasp.WithObserver(renewals))
	control := flawed(t, url, broken.Liar, hasp.WithTTL(steady))
	l := testkit.Lock(t, holder, "killed")
	unrenewed := testkit.Lock(t, control, "killed-control")
	if err := cluster.Members[leader(t, cluster)].Kill(); err != nil {
		t.Fatal(err)
	}
	// The lease would end, had it not been renewed with the new leader: the control's does.
	testkit.Eventually(t, "the control's lock is given to another", func() bool {
		short, cancel := context.WithTimeout(ctx(t), 5*time.Second)
		defer cancel()
		if !l.Held() {
			t.Fatalf("lost: %v", l.Err())
		}
		if _, err := other.Mutex("killed").TryLock(short); err == nil {
			t.Fatal("locked twice")
		}
		_, err := other.Mutex("killed-control").TryLock(short)
		time.Sleep(50 * time.Millisecond)
		return err == nil
	})
	if !unrenewed.Held() {
		t.Error("the control has noticed: this test shows nothing")
	}
	renewals.renewed(t, 1)
	handOver{holder: other, waiter: holder, name: "killed-2", meanwhile: func() {}}.passes(t)
	testkit.Release(t, l)
}

// The only member is killed and starts again. What was held is held or told as lost before
// anybody else has it; who waited acquires.
func TestServerRestarted(t *testing.T) {
	t.Parallel()
	e := backends.StartEtcd(t, backends.EtcdOptions{})
	url := storeURL([]*backends.Etcd{e})
	holder, waiter := testkit.Client(t, url, hasp.WithTTL(faultTTL)), testkit.Client(t, url, hasp.WithTTL(faultTTL))
	for i, down := range []time.Duration{0, 2 * faultTTL} {
		handOver{holder: holder, waiter: waiter, name: fmt.Sprint("restarted-", i), meanwhile: func() {
			if err := e.Kill(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(down)
			if err := e.Restart(); err != nil {
				t.Fatal(err)
			}
		}}.passes(t)
	}
}

// The server is stopped for less than the trust in a lease, and for more than a TTL.
func TestServerPaused(t *testing.T) {
	t.Parallel()
	e := backends.StartEtcd(t, backends.EtcdOptions{})
	url := storeURL([]*backends.Etcd{e})
	holder, waiter := testkit.Client(t, url, hasp.WithTTL(faultTTL)), testkit.Client(t, url, hasp.WithTTL(faultTTL))
	for i, pause := range []time.Duration{faultTTL / 3, 2 * faultTTL} {
		handOver{holder: holder, waiter: waiter, name: fmt.Sprint("server-paused-", i), meanwhile: func() {
			if err := e.Pause(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(pause)
			if err := e.Resume(); err != nil {
				t.Fatal(err)
			}
		}}.passes(t)
	}
}

// The history behind a waiter is compacted while it waits, and while its stream is down.
func TestCompaction(t *testing.T) {
	t.Parallel()
	e := backends.StartEtcd(t, backends.EtcdOptions{})
	p := testkit.Proxy(t, e.Addr)
	raw := client(t, e.Addr)
	compact := func() {
		t.Helper()
		for range 10 {
			testkit.Must[*clientv3.PutResponse](t)(raw.Put(ctx(t), "other", "x"))
		}
		now := testkit.Must[*clientv3.GetResponse](t)(raw.Get(ctx(t), "other"))
		testkit.Must[*clientv3.CompactResponse](t)(raw.Compact(ctx(t), now.Header.Revision, clientv3.WithCompactPhysical()))
	}
	holder := testkit.Client(t, storeURL([]*backends.Etcd{e}), hasp.WithTTL(faultTTL))
	waiter := testkit.Client(t, "etcd://"+p.Addr(), hasp.WithTTL(faultTTL))
	handOver{holder: holder, waiter: waiter, name: "compacted-1", meanwhile: compact}.passes(t)
	handOver{holder: holder, waiter: waiter, name: "compacted-2", meanwhile: func() {
		p.Cut()
		compact()
	}}.passes(t)
	// Far behind in a queue, a watch begins in the past, which may be compacted before the
	// server sees it. The reads of this ticket see to it that it is.
	b := backend(t, storeURL([]*backends.Etcd{e}))
	s := testkit.Session(t, b, calm, nil)
	var queue []driver.Ticket
	for i := range 60 {
		k := s.Ticket(whole("compacted-3", fmt.Sprint("c", i)))
		testkit.Entered(t, k)
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
// held are renewed, and can be released; or taken away, although no note can be kept of it.
func TestNoSpace(t *testing.T) {
	t.Parallel()
	e := backends.StartEtcd(t, backends.EtcdOptions{Config: map[string]any{"quota-backend-bytes": 1 << 20}})
	renewals := &tally{}
	c := testkit.Client(t, storeURL([]*backends.Etcd{e}), hasp.WithTTL(steady), hasp.WithObserver(renewals))
	raw := client(t, e.Addr)
	l := testkit.Lock(t, c, "space")
	stuck := testkit.Lock(t, c, "space-3")
	b, p := spoiled(t, e)
	unsure := testkit.Session(t, b, calm, nil).Ticket(whole("space-0", "space-0-a"))
	p.set(nil, puts("space-0-a"))
	if _, err := unsure.Enqueue(ctx(t)); !errors.Is(err, errIntercepted) {
		t.Fatalf("enqueue: %v", err)
	}
	if there := entries(t, b, "space-0"); len(there) != 1 {
		t.Fatalf("it has not entered: %+v", there)
	}
	var full error
	for i := 0; i < 100 && !errors.Is(full, rpctypes.ErrNoSpace); i++ {
		_, full = raw.Put(ctx(t), fmt.Sprint("fill-", i), strings.Repeat("x", 100_000))
	}
	if !errors.Is(full, rpctypes.ErrNoSpace) {
		t.Fatalf("no alarm: %v", full)
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
	if err := c.Evict(ctx(t), "space-3", stuck.ID(), "no space"); err != nil {
		t.Errorf("evict: %v", err)
	}
	await(t, "the evicted holder is told", stuck.Context().Done())
	renewals.renewed(t, 2)
	if !l.Held() {
		t.Errorf("lost: %v", l.Err())
	}
	testkit.Release(t, l)
}
