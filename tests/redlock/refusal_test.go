package redlock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// L2: one of three servers refuses our requests, by its rights for the user, and another one is
// silent while a waiter tries. One vote is missing, and no more than that is known: the waiter
// stays, and gets the lock when a majority is back.
func TestRefusalOfOneServer(t *testing.T) {
	t.Parallel()
	nodes := backends.StartRedisNodes(t, 3, backends.RedisOptions{})
	n := network{nodes: nodes}
	for _, node := range nodes {
		n.proxies = append(n.proxies, testkit.Proxy(t, node.Addr))
	}
	l := testkit.Lock(t, client(t, n.direct(), hasp.WithTTL(time.Minute)), "a")
	testkit.Eventually(t, "the key on all servers", everywhere(t, nodes, "a"))
	got := waiting(t, n.URL(), "a", hasp.WithTTL(time.Minute))
	do(t, nodes[1], "ACL", "SETUSER", "default", "-evalsha", "-eval")
	n.proxies[2].Partition()
	before := calls(t, nodes[:1], "set")
	testkit.Release(t, l)
	// The first server grants each attempt, and has its vote back.
	testkit.Eventually(t, "attempts", func() bool {
		if len(got) > 0 {
			t.Fatal("the waiter has given up")
		}
		return calls(t, nodes[:1], "set") > before+2
	})
	do(t, nodes[1], "ACL", "SETUSER", "default", "+evalsha", "+eval")
	n.proxies[2].Heal()
	testkit.Release(t, testkit.Granted(t, got))
}

// Servers that are full refuse a new value, and keep the lock: the term goes on, and ends with
// Release.
func TestPublishRefused(t *testing.T) {
	t.Parallel()
	nodes := backends.StartRedisNodes(t, 3, backends.RedisOptions{})
	c, other := client(t, urlOf(nodes), hasp.WithTTL(time.Minute)), client(t, urlOf(nodes))
	term, err := c.Election("a").Campaign(testkit.Context(t), []byte("one"))
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the key on all servers", everywhere(t, nodes, "a"))
	for _, n := range nodes[:2] {
		do(t, n, "CONFIG", "SET", "maxmemory", "1")
	}
	testkit.Until(t, "a refusal", func() error { // a busy machine may be late
		switch err := term.Publish(t.Context(), []byte("two")); {
		case err == nil:
			t.Fatal("published on full servers")
		case errors.Is(err, hasp.ErrLost):
			t.Fatal(err)
		case !errors.Is(err, driver.ErrRefused):
			return err
		}
		return nil
	})
	if !term.Held() {
		t.Error(term.Err())
	}
	for _, n := range nodes[:2] {
		do(t, n, "CONFIG", "SET", "maxmemory", "0")
	}
	if err := term.Release(t.Context()); err != nil {
		t.Error(err)
	}
	next, err := other.Election("a").Campaign(testkit.Context(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := next.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// A server that refuses a release for now has the key as before, and counts as one that has not
// answered: with another one that was away when the lock was taken, the lock was held to the end
// all the same. It gives the key up when it is asked again.
func TestReleaseRefused(t *testing.T) {
	t.Parallel()
	nodes := backends.StartRedisNodes(t, 3, backends.RedisOptions{})
	n := network{nodes: nodes}
	for _, node := range nodes {
		n.proxies = append(n.proxies, testkit.Proxy(t, node.Addr))
	}
	n.proxies[2].Partition()
	storeURL := n.URL() + "?node_timeout=500ms&quarantine=off" // a server that was a replica abstains for a TTL
	l := testkit.Lock(t, client(t, storeURL, hasp.WithTTL(time.Minute)), "a")
	do(t, nodes[1], "REPLICAOF", "127.0.0.1", "1") // where no server is: it serves on, and writes nothing
	if err := l.Release(testkit.Context(t)); err != nil {
		t.Errorf("release: %v", err)
	}
	do(t, nodes[1], "REPLICAOF", "NO", "ONE")
	testkit.Eventually(t, "the server has given the key up", func() bool { return calls(t, nodes[1:2], "del") > 0 })
	testkit.Release(t, testkit.Lock(t, client(t, storeURL, hasp.WithTTL(time.Minute)), "a"))
}
