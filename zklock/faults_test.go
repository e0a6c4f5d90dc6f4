package zklock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// A session that ends on the server is told as soon as the client has reconnected, and the
// next one takes nothing over from it.
func TestSessionExpiredElsewhere(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	s, name := newSite(t, calm, nil, z), uniqueName(t)
	held := s.lock(t, name)
	waiting := newSite(t, calm, nil, z).queue(t, name)
	old := s.conn(t)
	expire(t, z, old)
	lost(t, held, hasp.ReasonSessionGone) // within patience: the session would have lasted for minutes
	next := testkit.Granted(t, waiting)
	if next.Token() <= held.Token() {
		t.Errorf("token %d after %d", next.Token(), held.Token())
	}
	testkit.Release(t, next)
	again := s.lock(t, name)
	if c := s.conn(t); c == old || c.zk.SessionID() == old.zk.SessionID() {
		t.Error("the old session is in use")
	}
	testkit.Release(t, again)
}

// A waiter in the middle dies. Who is behind it does not mistake that for its turn, and
// watches the next in front.
func TestChainRepair(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	a, b, c := newSite(t, calm, nil, z), newSite(t, calm, nil, z), newSite(t, calm, nil, z)
	name := uniqueName(t)
	held := a.lock(t, name)
	middle := b.queue(t, name)
	last := c.queue(t, name)
	dead := b.conn(t)
	expire(t, z, dead)
	testkit.Eventually(t, "the dead waiter queued again, behind", func() bool {
		es := a.entries(t, name)
		return len(es) == 3 && es[1].Session == sessionName(c.conn(t).zk.SessionID())
	})
	select {
	case <-last:
		t.Fatal("granted while another holds")
	case <-time.After(100 * time.Millisecond):
	}
	testkit.Release(t, held)
	testkit.Release(t, testkit.Granted(t, last))
	testkit.Release(t, testkit.Granted(t, middle))
}

// The server stands still for longer than the timeout: the holder has stopped believing
// by then, and never believes again.
func TestServerStopped(t *testing.T) {
	testtier.Long(t)
	t.Parallel() // it waits
	z := backends.StartZooKeeper(t, backends.ZooKeeperOptions{})
	const ttl = 8 * time.Second
	s, name := newSite(t, ttl, nil, z), uniqueName(t)
	other := newSite(t, calm, nil, z) // its session outlives the standstill
	held := testkit.LockDespiteErrors(t, s.Client, name)
	waiting := other.queue(t, name)
	if err := z.Pause(); err != nil {
		t.Fatal(err)
	}
	believed(t, held, time.Now().Add(ttl))
	time.Sleep(ttl)
	if err := z.Resume(); err != nil {
		t.Fatal(err)
	}
	next := testkit.Granted(t, waiting)
	if held.Held() || next.Token() <= held.Token() {
		t.Errorf("held %t, token %d after %d", held.Held(), next.Token(), held.Token())
	}
	testkit.Release(t, next)
}

// A follower that has lost its leader goes on answering for syncLimit ticks, which is far
// longer than its sessions' timeout. Its clients must not take that for a renewal.
func TestFollowerWithoutLeader(t *testing.T) {
	testtier.Long(t)
	t.Parallel()                                                                                         // it waits
	e := backends.StartZooKeeperEnsemble(t, backends.ZooKeeperOptions{Config: []string{"syncLimit=20"}}) // 10 s
	const ttl = 4 * time.Second
	leader, err := e.Leader()
	if err != nil {
		t.Fatal(err)
	}
	var follower *backends.ZooKeeper
	for _, m := range e.Members {
		if m != leader {
			follower = m
		}
	}
	s := newSite(t, ttl, nil, follower)
	var held *hasp.Lease
	for range 3 {
		held = s.lock(t, uniqueName(t))
		time.Sleep(ttl) // renewed at least twice
		if held.Held() {
			break
		}
		t.Logf("lost although all is well: %v", held.Err())
	}
	if !held.Held() {
		t.Skip("inconclusive: three servers on this machine do not renew for 4 s")
	}
	// The control: the answer to a renewal by a plain request. In a separate session, because
	// a session's reads wait behind its renewals, which have no answer.
	plain := admin(t, follower)
	for _, m := range e.Members {
		if m != follower {
			if err := m.Pause(); err != nil {
				t.Fatal(err)
			}
		}
	}
	began := time.Now()
	answered := make(chan time.Duration, 1) // when the last answer came
	go func() {
		last := time.Duration(0)
		for time.Since(began) < 2*ttl {
			if _, _, err := plain.Exists("/"); err != nil {
				break
			}
			last = time.Since(began)
			time.Sleep(20 * time.Millisecond)
		}
		answered <- last
	}()
	believed(t, held, began.Add(ttl))
	if last := <-answered; last < ttl {
		t.Errorf("the follower answered for only %s: this test has shown nothing", last)
	}
}

// A majority stays when the leader dies, and so do locks.
func TestLeaderKilled(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	e := backends.StartZooKeeperEnsemble(t, backends.ZooKeeperOptions{})
	const ttl = 10 * time.Second
	s, other, name := newSite(t, ttl, nil, e.Members...), newSite(t, ttl, nil, e.Members...), uniqueName(t)
	held := s.lock(t, name)
	waiting := other.queue(t, name)
	leader, err := e.Leader()
	if err != nil {
		t.Fatal(err)
	}
	if err := leader.Kill(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "a new leader", func() bool { _, err := e.Leader(); return err == nil })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err = held.Release(ctx)
	if err != nil && !errors.Is(err, hasp.ErrLost) && !errors.Is(err, hasp.ErrUnknown) { // a slow machine may take too long to elect
		t.Errorf("release: %v", err)
	}
	next := testkit.Granted(t, waiting)
	if next.Token() <= held.Token() {
		t.Errorf("token %d after %d", next.Token(), held.Token())
	}
	testkit.Release(t, next)
}
