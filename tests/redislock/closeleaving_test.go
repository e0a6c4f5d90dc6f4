package redislock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
)

var strategies = []string{"queue", "setnx", "redisson"}

// atOnce demands that a name is free for a client that does not wait.
func atOnce(t *testing.T, storeURL, name string) {
	t.Helper()
	r := testkit.Request(name)
	r.NoWait = true
	testkit.Held(t, session(t, testkit.Open(t, storeURL), time.Minute).Ticket(r))
}

// lostLeave leaves by a request that never reaches the server.
func lostLeave(t *testing.T, net *faultnet.Proxy, k driver.Ticket) {
	t.Helper()
	net.Set(faultnet.Up, faultnet.Rule{Mode: faultnet.Hold})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := k.Leave(ctx); err == nil || errors.Is(err, driver.ErrGone) {
		t.Fatalf("left without a network: %v", err)
	}
	net.Reset()
	net.Heal()
}

// A client that is closed gives up also the lock whose release had no answer.
func TestCloseAfterLostLeave(t *testing.T) {
	for _, strategy := range strategies {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			server := backends.StartRedis(t, backends.RedisOptions{})
			net := testkit.Proxy(t, server.Addr)
			params := "?strategy=" + strategy
			s := session(t, testkit.Open(t, "redis://"+net.Addr()+params), time.Minute)
			k := s.Ticket(testkit.Request("a"))
			testkit.Held(t, k)
			lostLeave(t, net, k)
			testkit.Until(t, "the end of the session", func() error { return s.Close(t.Context()) })
			atOnce(t, server.URL()+params, "a")
		})
	}
}

// A waiter whose Leave had no answer leaves its place by the next one. A place that stays is woken
// in place of a client that waits.
func TestLostLeaveOfWaiter(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	const params = "?strategy=setnx"
	testkit.Held(t, session(t, testkit.Open(t, server.URL()+params), time.Minute).Ticket(testkit.Request("a")))
	net := testkit.Proxy(t, server.Addr)
	k := session(t, testkit.Open(t, "redis://"+net.Addr()+params), time.Minute).Ticket(testkit.Request("a"))
	if v := testkit.Entered(t, k); v.Held || do(t, server, "ZCARD", "hasp:lock:w:{a}") != "1" {
		t.Fatalf("%+v", v)
	}
	lostLeave(t, net, k)
	testkit.Until(t, "an answer", func() error {
		if err := k.Leave(t.Context()); !errors.Is(err, driver.ErrGone) {
			return err
		}
		return nil
	})
	if n := do(t, server, "ZCARD", "hasp:lock:w:{a}"); n != "0" {
		t.Errorf("%s waiters have stayed", n)
	}
}

// A server that refuses a release for now, as a replica does that is about to be promoted, has not
// removed the lock: the session is closed when it has.
func TestCloseIsRefused(t *testing.T) {
	for _, strategy := range strategies {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			server := backends.StartRedis(t, backends.RedisOptions{})
			storeURL := server.URL() + "?quarantine=off&strategy=" + strategy // it is another master, too
			s := session(t, testkit.Open(t, storeURL), time.Minute)
			testkit.Held(t, s.Ticket(testkit.Request("a")))
			do(t, server, "REPLICAOF", "127.0.0.1", "1") // where no server is
			if err := s.Close(t.Context()); err == nil {
				t.Error("closed, and the server has refused it")
			}
			do(t, server, "REPLICAOF", "NO", "ONE")
			testkit.Until(t, "the end of the session", func() error { return s.Close(t.Context()) })
			atOnce(t, storeURL, "a")
		})
	}
}
