package redlock_test

import (
	"net"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// A server that is demoted behind a fixed name keeps its connections. Its vote is asked of the
// server that the name leads to since: with a third server away, a lock needs it.
func TestDemotedBehindName(t *testing.T) {
	t.Parallel()
	nodes := backends.StartRedisNodes(t, 4, backends.RedisOptions{})
	next := nodes[3]
	n := network{nodes: nodes[:3]}
	for _, node := range n.nodes {
		n.proxies = append(n.proxies, testkit.Proxy(t, node.Addr))
	}
	c := client(t, n.URL()+"?quarantine=off", hasp.WithTTL(time.Minute))
	warm(t, c, n.nodes)
	held := testkit.Lock(t, c, "held")
	testkit.Eventually(t, "the key on all servers", everywhere(t, n.nodes, "held"))

	if err := n.proxies[1].Redirect(next.Addr); err != nil {
		t.Fatal(err)
	}
	host, port, _ := net.SplitHostPort(next.Addr)
	do(t, nodes[1], "REPLICAOF", host, port) // it closes no connection of a client
	n.proxies[2].Partition()
	testkit.Release(t, testkit.Lock(t, c, "new"))
	if !held.Held() {
		t.Error(held.Err())
	}
	if calls(t, nodes[3:], "set") == 0 {
		t.Error("the server behind the name was not asked")
	}
}
