package backends

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hasplock/hasp/internal/testtier"
)

// setReplicated writes a key and returns when a replica has it. Both commands go over one
// connection: WAIT waits only for the writes of the connection that it is sent over.
func setReplicated(t *testing.T, r *Redis, key, value string) {
	t.Helper()
	c, err := r.connect()
	if err != nil {
		t.Fatal(err)
	}
	defer c.conn.Close()
	if _, err := c.do("SET", key, value); err != nil {
		t.Fatal(err)
	}
	if n, err := c.do("WAIT", "1", "1000"); err != nil || n != "1" {
		t.Fatalf("WAIT: %s replicas (%v), want 1", n, err)
	}
}

func TestRedisSentinelFailsOver(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	s := StartRedisSentinel(t)
	setReplicated(t, s.Master, "key", "value")
	if addr, err := s.CurrentMaster(); err != nil || addr != s.Master.Addr {
		t.Fatalf("the master is %s (%v), want %s", addr, err, s.Master.Addr)
	}
	if err := s.Master.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := eventually(func() error {
		addr, err := s.CurrentMaster()
		if err == nil && addr != s.Replica.Addr {
			err = fmt.Errorf("the master is still %s", addr)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.Replica.expect("value", "GET", "key"); err != nil {
		t.Fatal(err)
	}
}

func TestRedisClusterFailsOver(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	c := StartRedisCluster(t)
	// CLUSTER KEYSLOT "key" is 12539: the third master's.
	master, replica, other := c.Nodes[2], c.Nodes[5], c.Nodes[0]
	setReplicated(t, master, "key", "value")
	if _, err := other.Do("GET", "key"); err == nil || !strings.Contains(err.Error(), "MOVED 12539 "+master.Addr) {
		t.Fatalf("another master says %v, want MOVED to %s", err, master.Addr)
	}
	if err := master.Pause(); err != nil {
		t.Fatal(err)
	}
	if err := eventually(func() error { return replica.expect("value", "GET", "key") }); err != nil {
		t.Fatal(err)
	}
	if err := master.Resume(); err != nil {
		t.Fatal(err)
	}
	if err := eventually(func() error {
		return c.agree("cluster_state:ok", "cluster_slots_ok:16384")
	}); err != nil {
		t.Fatal(err)
	}
}

func TestSharedRedisClusterServes(t *testing.T) {
	testtier.Long(t)
	c := SharedRedisCluster(t)
	if len(c.Addrs()) != 6 {
		t.Fatalf("the nodes are %v, want 6", c.Addrs())
	}
	if err := c.agree("cluster_state:ok", "cluster_size:3"); err != nil {
		t.Fatal(err)
	}
}
