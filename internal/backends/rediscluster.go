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
		return nil, errors.Join(fmt.Errorf("make a cluster of %v: %w", c.Addrs(), err), c.Discard())
	}
	return c, nil
}

// join makes one cluster of the nodes: slots, acquaintance, then replicas, each once the
// step before is known to all, because a node refuses to replicate one it does not know.
func (c *RedisCluster) join(masters int) error {
	for i, n := range c.Nodes {
		// Different epochs, or the nodes would have to quarrel about them first.
		if err := n.expect("OK", "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1)); err != nil {
			return err
		}
		if i < masters {
			first, last := clusterSlots*i/masters, clusterSlots*(i+1)/masters-1
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
	if err := c.sayNew(masters); err != nil {
		return err
	}
	return eventually(func() error { return c.replicated(masters) })
}

// sayNew is Redis.sayNew for each slot: a script reads only keys of its slot.
func (c *RedisCluster) sayNew(masters int) error {
	tags := make([][]string, masters)
	for i, found := 0, map[uint16]bool{}; len(found) < clusterSlots; i++ {
		tag := strconv.Itoa(i)
		if slot := crc16(tag) % clusterSlots; !found[slot] {
			found[slot] = true
			of := masters - 1
			for clusterSlots*of/masters > int(slot) {
				of--
			}
			tags[of] = append(tags[of], tag)
		}
	}
	for i, n := range c.Nodes[:masters] {
		id, err := n.runID()
		if err != nil {
			return err
		}
		const script = "for i = 2, #ARGV do redis.call('SET', 'hasp:new:{' .. ARGV[i] .. '}', ARGV[1]) end return 'OK'"
		if err := n.expect("OK", append([]string{"EVAL", script, "0", id}, tags[i]...)...); err != nil {
			return err
		}
	}
	return nil
}

const clusterSlots = 16384

// crc16 is Redis Cluster's: XMODEM, polynomial 0x1021.
func crc16(text string) (crc uint16) {
	for _, b := range []byte(text) {
		crc ^= uint16(b) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			if crc <<= 1; carry {
				crc ^= 0x1021
			}
		}
	}
	return crc
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
