package redislock_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// The same for a client that holds nothing, so that none of its renewals meets the refusal, and
// whose grants wait for replicas, over separate connections.
func TestDemotedBehindNameReplicated(t *testing.T) {
	t.Parallel()
	old := backends.StartRedis(t, backends.RedisOptions{})
	next := backends.StartRedis(t, backends.RedisOptions{})
	follow := func(replica, master *backends.Redis) {
		host, port, _ := net.SplitHostPort(master.Addr)
		do(t, replica, "REPLICAOF", host, port)
		linked(t, replica)
	}
	follow(next, old)
	name := testkit.Proxy(t, old.Addr)
	c := client(t, "redis://"+name.Addr()+"?wait=1&quarantine=off")
	testkit.Release(t, testkit.Lock(t, c, "before"))

	do(t, next, "REPLICAOF", "NO", "ONE")
	if err := name.Redirect(next.Addr); err != nil {
		t.Fatal(err)
	}
	follow(old, next)
	testkit.Release(t, testkit.Lock(t, c, "after"))
}

// A master that is demoted behind a fixed name keeps its connections. Clients that were connected
// find the new master by the name, without a restart: what they hold is renewed there, and they
// lock anew.
func TestDemotedBehindName(t *testing.T) {
	for _, strategy := range []string{"queue", "setnx"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			old := backends.StartRedis(t, backends.RedisOptions{})
			next := backends.StartRedis(t, backends.RedisOptions{})
			host, port, _ := net.SplitHostPort(old.Addr)
			do(t, next, "REPLICAOF", host, port)
			linked(t, next)
			name := testkit.Proxy(t, old.Addr)
			c, err := hasp.Open(t.Context(), "redis://"+name.Addr()+"?ttl=6s&strategy="+strategy)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			held, err := c.Mutex("held").Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			testkit.Until(t, "the grant to be at the replica", func() error {
				if a, b := replicationOffset(t, old), replicationOffset(t, next); a != b {
					return fmt.Errorf("%s and %s", a, b)
				}
				return nil
			})
			do(t, next, "REPLICAOF", "NO", "ONE")
			if err := name.Redirect(next.Addr); err != nil {
				t.Fatal(err)
			}
			nextHost, nextPort, _ := net.SplitHostPort(next.Addr)
			do(t, old, "REPLICAOF", nextHost, nextPort) // it closes no connection of a client

			lease, err := c.Mutex("new").Lock(t.Context())
			if err != nil {
				t.Fatalf("after the demotion: %v", err)
			}
			if err := lease.Release(t.Context()); err != nil {
				t.Error(err)
			}
			for end := time.Now().Add(9 * time.Second); time.Now().Before(end) && held.Held(); time.Sleep(100 * time.Millisecond) {
			}
			if err := held.Release(t.Context()); err != nil {
				t.Errorf("what was held: %v", err)
			}
		})
	}
}

func replicationOffset(t *testing.T, server *backends.Redis) string {
	_, after, _ := strings.Cut(do(t, server, "INFO", "replication"), "\nmaster_repl_offset:")
	offset, _, _ := strings.Cut(after, "\r")
	return offset
}
