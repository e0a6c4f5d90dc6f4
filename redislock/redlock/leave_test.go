package redlock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/redislock/internal/setnx"
)

// count is how many tickets the session knows, each of which would be memory for ever if no call
// came for it.
func (s *session) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.tickets)
}

// The core calls no Leave for a request whose first answer is a refusal. The session forgets such a
// request, and the place among the waiters that a server has noted for it, which would stay for two
// minutes.
func TestRefusedRequestsAreForgotten(t *testing.T) {
	t.Parallel()
	nodes := backends.StartRedisNodes(t, 3, backends.RedisOptions{})
	s := opened(t, nodes)
	do := func(n *backends.Redis, args ...string) string {
		out, err := n.Do(args...)
		if err != nil {
			t.Error(err)
		}
		return out
	}
	testkit.Held(t, s.Ticket(testkit.Request("warm")))
	for _, n := range nodes[:2] {
		do(n, "RPUSH", "list", "x")
		do(n, "CONFIG", "SET", "maxmemory", "1")
	}
	for _, name := range []string{"list", "full"} {
		do(nodes[2], "SET", name, "another client's", "PX", "600000")
	}
	want := map[string]error{"list": driver.ErrMismatch, "full": driver.ErrRefused}
	for name, refusal := range want {
		for range 100 {
			refusedAtFirst(t, s, name, refusal)
		}
	}
	if n := s.count(); n != 1 { // the lock that is held
		t.Errorf("%d requests are remembered", n)
	}
	for name := range want {
		testkit.Eventually(t, "the places of "+name+" are given back", func() bool {
			return do(nodes[2], "EXISTS", setnxWaiters(name)) == "0"
		})
	}
	for _, n := range nodes[:2] {
		do(n, "CONFIG", "SET", "maxmemory", "0")
	}
}

// setnxWaiters is the key of a name's waiters.
func setnxWaiters(name string) string { return setnx.WaitersPrefix + "{" + name + "}" }

// refusedAtFirst asks as the core does: an answer that is unknown because a busy machine is late is
// followed by Leave.
func refusedAtFirst(t *testing.T, s *session, name string, want error) {
	t.Helper()
	testkit.Until(t, "a refusal", func() error {
		k := s.Ticket(testkit.Request(name))
		v, err := k.Enqueue(t.Context())
		if err == nil && v.Held {
			t.Fatal("granted")
		}
		if !errors.Is(err, want) {
			_ = k.Leave(testkit.Context(t))
			return fmt.Errorf("%+v, %w", v, err)
		}
		return nil
	})
}

// A refusal after a wait is for the core to outlast: the waiter keeps its place and gets the lock.
func TestRefusedWaiterStays(t *testing.T) {
	t.Parallel()
	nodes := backends.StartRedisNodes(t, 3, backends.RedisOptions{})
	s := opened(t, nodes)
	holder, waiter := s.Ticket(testkit.Request("a")), s.Ticket(testkit.Request("a"))
	testkit.Held(t, holder)
	waits(t, waiter)
	set := func(memory string) {
		for _, n := range nodes {
			if _, err := n.Do("CONFIG", "SET", "maxmemory", memory); err != nil {
				t.Fatal(err)
			}
		}
	}
	set("1")
	testkit.Until(t, "a refusal", func() error {
		if _, err := waiter.Enqueue(t.Context()); !errors.Is(err, driver.ErrRefused) {
			return fmt.Errorf("not refused: %w", err)
		}
		return nil
	})
	set("0")
	_ = holder.Leave(testkit.Context(t)) // a busy server may confirm it later
	testkit.Until(t, "the grant", func() error {
		v, err := waiter.Enqueue(t.Context())
		if err == nil && !v.Held {
			err = errors.New("it waits")
		}
		return err
	})
}

// The places of a waiter are given back when its session is closed. They would stay for two
// minutes: a release would wake no client by them, and newcomers leave a free lock to them.
func TestClosedWaiter(t *testing.T) {
	t.Parallel()
	nodes := backends.StartRedisNodes(t, 3, backends.RedisOptions{})
	var addrs []string
	for _, n := range nodes {
		addrs = append(addrs, n.Addr)
	}
	holder := opened(t, nodes).Ticket(testkit.Request("a"))
	testkit.Held(t, holder)
	s := openedAt(t, addrs, "node_timeout=15s") // so long does Close wait for a busy server
	waiter := s.Ticket(testkit.Request("a"))
	places := func(want string) func() bool {
		return func() bool {
			for _, n := range nodes {
				if out, err := n.Do("ZCARD", setnxWaiters("a")); err != nil || out != want {
					return false
				}
			}
			return true
		}
	}
	testkit.Eventually(t, "a place on each server", func() bool {
		waits(t, waiter)
		return places("1")()
	})
	if err := s.Close(testkit.Context(t)); err != nil {
		t.Errorf("close: %v", err)
	}
	testkit.Eventually(t, "no place is left", places("0"))
}

// A waiter has no keys: its session need not wait for servers that hang when it is closed.
func TestClosedWaiterWhileServersHang(t *testing.T) {
	t.Parallel()
	nodes := backends.StartRedisNodes(t, 3, backends.RedisOptions{})
	holder := opened(t, nodes).Ticket(testkit.Request("a"))
	testkit.Held(t, holder)
	s := opened(t, nodes)
	waits(t, s.Ticket(testkit.Request("a")))
	atRest(t, s)
	for _, n := range nodes {
		if err := n.Pause(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = n.Resume() })
	}
	if err := s.Close(testkit.Context(t)); err != nil {
		t.Errorf("close: %v", err)
	}
}

// atRest waits until all requests have been answered.
func atRest(t *testing.T, s *session) {
	t.Helper()
	testkit.Eventually(t, "answers to all requests", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, p := range s.pending {
			if p.open > 0 || p.releasing {
				return false
			}
		}
		return true
	})
}

// waits asks until the answer is that the ticket waits.
func waits(t *testing.T, k driver.Ticket) {
	t.Helper()
	testkit.Until(t, "a place", func() error {
		v, err := k.Enqueue(t.Context())
		if v.Held {
			t.Fatal("granted")
		}
		return err
	})
}

// A release that the servers have received late, and confirmed, is a release. The requests of a
// repeated Leave arrive behind the first ones, and "it is not there" is their answer, which says
// nothing.
func TestReleaseDuringSilence(t *testing.T) {
	t.Parallel()
	nodes := backends.StartRedisNodes(t, 3, backends.RedisOptions{})
	var proxies []*faultnet.Proxy
	var addrs []string
	for _, n := range nodes {
		p := testkit.Proxy(t, n.Addr)
		proxies, addrs = append(proxies, p), append(addrs, p.Addr())
	}
	s := openedAt(t, addrs, "node_timeout=100ms")
	// A client gives up a connection that has been silent for three seconds, and its answers are
	// lost. A busy machine may take that long: then the next round counts.
	for round := range 20 {
		if err, counts := releasedDuringSilence(t, s, proxies, fmt.Sprint("a", round)); counts {
			if err != nil {
				t.Errorf("release: %v", err)
			}
			return
		}
	}
	t.Skip("inconclusive: each release of 20 took this machine two seconds or more")
}

func releasedDuringSilence(t *testing.T, s *session, proxies []*faultnet.Proxy, name string) (_ error, counts bool) {
	a, b := s.Ticket(testkit.Request(name)).(*ticket), s.Ticket(testkit.Request(name+" too")).(*ticket)
	testkit.Held(t, a)
	atRest(t, s)
	began := time.Now()
	for _, p := range proxies {
		p.Set(faultnet.Up, faultnet.Rule{Mode: faultnet.Hold})
	}
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		for ctx.Err() == nil { // also after a connection is given up
			_, _ = b.Enqueue(ctx)
			time.Sleep(time.Millisecond)
		}
	}()
	testkit.Eventually(t, "the servers are silent", func() bool {
		n := 0
		for _, node := range s.store.nodes {
			if node.silent(s.nodeTimeout) {
				n++
			}
		}
		return n == len(proxies)
	})
	for range 3 { // as the core repeats it
		if err := a.Leave(testkit.Context(t)); err == nil || errors.Is(err, driver.ErrGone) {
			t.Errorf("release while the servers are silent: %v", err)
		}
	}
	for _, p := range proxies {
		p.Heal()
	}
	var err error
	testkit.Eventually(t, "an answer", func() bool {
		err = a.Leave(testkit.Context(t))
		return err == nil || errors.Is(err, driver.ErrGone) || errors.Is(err, driver.ErrForgotten)
	})
	counts = time.Since(began) < 2*time.Second
	cancel()
	<-asked
	_ = b.Leave(testkit.Context(t))
	return err, counts
}
