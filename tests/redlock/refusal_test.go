package redlock_test

import (
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// L2: one of three servers refuses our requests, by its rights for the user, and another one is silent while a waiter
// tries. One vote is missing, and no more than that is known: the waiter stays, and gets the lock when a majority is back.
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
