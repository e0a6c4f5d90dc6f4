package backends

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// RedisCluster is a cluster of three masters with a replica each. A master that stops
// answering is replaced by its replica after one to two seconds.
type RedisCluster struct {
	group
	Nodes []*Redis // 0..2 begin as masters, 3+i as replica of i
}

// StartRedisCluster starts a cluster for this test alone.
func StartRedisCluster(tb testing.TB) *RedisCluster {
	tb.Helper()
	return private(tb, startRedisCluster, redisServer)
}

var sharedRedisCluster once[*RedisCluster]

// SharedRedisCluster returns the process's cluster.
func SharedRedisCluster(tb testing.TB) *RedisCluster {
	tb.Helper()
	return sharedRedisCluster.get(tb, startRedisCluster, redisServer)
}

// Addrs are the addresses of all nodes.
func (c *RedisCluster) Addrs() []string {
	var addrs []string
	for _, n := range c.Nodes {
		addrs = append(addrs, n.Addr)
	}
	return addrs
}

func startRedisCluster() (*RedisCluster, error) {
	const masters = 3
	nodes, err := startAll(2*masters, func(int) (*Redis, error) {
		return startRedisAs("cluster-node", RedisOptions{Config: []string{
			"cluster-node-timeout 1000", "repl-diskless-sync-delay 0",
		}})
	})
	if err != nil {
		return nil, err
	}
	c := &RedisCluster{processesOf(nodes), nodes}
	if err := c.join(masters); err != nil {
		return nil, errors.Join(fmt.Errorf("make a cluster of %v: %w", c.Addrs(), err), c.discard())
	}
	return c, nil
}

// join makes one cluster of the nodes: slots, acquaintance, then replicas, each once the
// step before is known to all, because a node refuses to replicate one it does not know.
func (c *RedisCluster) join(masters int) error {
	const slots = 16384
	for i, n := range c.Nodes {
		// Different epochs, or the nodes would have to quarrel about them first.
		if err := n.expect("OK", "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1)); err != nil {
			return err
		}
		if i < masters {
			first, last := slots*i/masters, slots*(i+1)/masters-1
			add := []string{"CLUSTER", "ADDSLOTS"} // ADDSLOTSRANGE came with Redis 7
			for slot := first; slot <= last; slot++ {
				add = append(add, strconv.Itoa(slot))
			}
			if err := n.expect("OK", add...); err != nil {
				return err
			}
		}
		host, port, _ := strings.Cut(n.Addr, ":")
		if err := c.Nodes[0].expect("OK", "CLUSTER", "MEET", host, port, strconv.Itoa(n.busPort)); err != nil {
			return err
		}
	}
	if err := eventually(func() error { return c.agree("cluster_state:ok", "cluster_known_nodes:6") }); err != nil {
		return err
	}
	for i, replica := range c.Nodes[masters:] {
		id, err := c.Nodes[i].Do("CLUSTER", "MYID")
		if err != nil {
			return err
		}
		if err := replica.expect("OK", "CLUSTER", "REPLICATE", id); err != nil {
			return err
		}
	}
	return eventually(func() error { return c.replicated(masters) })
}

// agree complains unless every node's CLUSTER INFO has all the lines.
func (c *RedisCluster) agree(lines ...string) error {
	for _, n := range c.Nodes {
		info, err := n.Do("CLUSTER", "INFO")
		if err != nil {
			return err
		}
		for _, line := range lines {
			if !strings.Contains(info, line+"\r\n") {
				return fmt.Errorf("%s does not say %s", n.Addr, line)
			}
		}
	}
	return nil
}

// replicated complains unless each replica has its master's data and every node knows
// all three pairs: a client that asks any of them gets the whole map.
func (c *RedisCluster) replicated(masters int) error {
	for _, n := range c.Nodes {
		reply, err := n.Do("CLUSTER", "NODES")
		if err != nil {
			return err
		}
		if got := strings.Count(reply, "slave "); got != masters {
			return fmt.Errorf("%s knows of %d replicas", n.Addr, got)
		}
	}
	for _, n := range c.Nodes[masters:] {
		if err := linked(n); err != nil {
			return err
		}
	}
	return nil
}
