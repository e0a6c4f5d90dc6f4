package redislock_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// A master that is demoted behind a fixed name keeps its connections. Clients that were connected find the new
// master by the name, without a restart: what they hold is renewed there, and they lock anew.
func TestDemotedBehindName(t *testing.T) {
	for _, strategy := range []string{"queue", "setnx"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			old := backends.StartRedis(t, backends.RedisOptions{})
			next := backends.StartRedis(t, backends.RedisOptions{})
			host, port, _ := net.SplitHostPort(old.Addr)
			do(t, next, "REPLICAOF", host, port)
			linked(t, next)
			name := startName(t, old.Addr)
			c, err := hasp.Open(t.Context(), "redis://"+name.Addr().String()+"?ttl=6s&strategy="+strategy)
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
			name.target.Store(next.Addr)
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

// name is a fixed address whose new connections lead to the target.
type name struct {
	net.Listener
	target atomic.Value // string
}

func startName(t *testing.T, target string) *name {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &name{Listener: l}
	n.target.Store(target)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				s, err := net.Dial("tcp", n.target.Load().(string))
				if err != nil {
					return
				}
				defer s.Close()
				go func() { io.Copy(s, c); s.Close() }()
				io.Copy(c, s)
			}()
		}
	}()
	return n
}
