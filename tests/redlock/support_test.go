package redlock_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
)

// T is the TTL of clients whose locks are to be lost, and calm of those whose locks must last
// however busy the machine is. slack is how much longer a busy machine may take.
const (
	T     = 2 * time.Second
	calm  = 6 * T
	slack = 10 * time.Second
)

func client(t *testing.T, storeURL string, opts ...hasp.Option) *hasp.Client {
	t.Helper()
	if !strings.Contains(storeURL, "?") {
		// As long as T allows: the fault must make an attempt fail, and not a slow machine. The
		// conformance tests and TestRandomFaults use the default.
		storeURL += "?node_timeout=500ms"
	}
	return testkit.Client(t, storeURL, append([]hasp.Option{hasp.WithTTL(calm)}, opts...)...)
}

// waiting starts to lock and returns when the client waits.
func waiting(t *testing.T, storeURL, name string, opts ...hasp.Option) <-chan *hasp.Lease {
	t.Helper()
	return testkit.Waiting(t, name, func(seen hasp.Option) *hasp.Client {
		return client(t, storeURL, append(opts, seen)...)
	})
}

func do(t *testing.T, server *backends.Redis, args ...string) string {
	t.Helper()
	out, err := server.Do(args...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return out
}

// outlives returns when the lock has been renewed for so long that it could not have lasted
// without.
func outlives(t *testing.T, l *hasp.Lease) {
	t.Helper()
	before := l.Deadline()
	testkit.Eventually(t, "renewals for a TTL", func() bool {
		if !l.Held() {
			t.Fatal(l.Err())
		}
		return l.Deadline().Sub(before) > calm
	})
}

// everywhere and nowhere ask whether the servers have the key, of any client.
func everywhere(t *testing.T, nodes []*backends.Redis, key string) func() bool {
	return func() bool { return having(t, nodes, key) == len(nodes) }
}

func nowhere(t *testing.T, nodes []*backends.Redis, key string) func() bool {
	return func() bool { return having(t, nodes, key) == 0 }
}

func having(t *testing.T, nodes []*backends.Redis, key string) (n int) {
	t.Helper()
	for _, node := range nodes {
		if do(t, node, "EXISTS", key) == "1" {
			n++
		}
	}
	return n
}

// warm makes the client connect to every server and load its scripts there. A lock waits for a
// majority alone: the client would connect to the others at some later time.
func warm(t *testing.T, c *hasp.Client, nodes []*backends.Redis) {
	t.Helper()
	l := testkit.Lock(t, c, "warm")
	testkit.Eventually(t, "all servers have been reached", everywhere(t, nodes, "warm"))
	// A busy machine may lose the answer to the first request: then it is gone, and no answer says
	// by whom.
	if err := l.Release(t.Context()); err != nil && !errors.Is(err, hasp.ErrUnknown) {
		t.Fatal(err)
	}
	testkit.Eventually(t, "all servers have answered", nowhere(t, nodes, "warm"))
}

// at returns the servers whose key has the value that begins with id.
func at(t *testing.T, nodes []*backends.Redis, key, id string) (have []int) {
	t.Helper()
	for i, n := range nodes {
		if out, err := n.Do("GET", key); err == nil && strings.HasPrefix(out, id+" ") {
			have = append(have, i)
		}
	}
	return have
}

func each(t *testing.T, nodes []*backends.Redis, do func(*backends.Redis) error) {
	t.Helper()
	for _, n := range nodes {
		if err := do(n); err != nil {
			t.Fatal(err)
		}
	}
}

func pause(n *backends.Redis) error   { return n.Pause() }
func resume(n *backends.Redis) error  { return n.Resume() }
func kill(n *backends.Redis) error    { return n.Kill() }
func restart(n *backends.Redis) error { return n.Restart() }

// network is five servers, each behind a separate bad network.
type network struct {
	nodes   []*backends.Redis
	proxies []*faultnet.Proxy
}

func behindProxies(t *testing.T) *network {
	t.Helper()
	n := &network{nodes: backends.StartRedisNodes(t, 5, backends.RedisOptions{})}
	for _, node := range n.nodes {
		p := testkit.Proxy(t, node.Addr)
		n.proxies = append(n.proxies, p)
	}
	return n
}

// URL names the servers behind the network.
func (n *network) URL() string {
	var addrs []string
	for _, p := range n.proxies {
		addrs = append(addrs, p.Addr())
	}
	return "redlock://" + strings.Join(addrs, ",")
}

func (n *network) direct() string { return urlOf(n.nodes) }

// session opens a session below the core, which is not renewed.
func session(t *testing.T, b driver.Backend, ttl time.Duration, gone func(string, error)) driver.Session {
	t.Helper()
	s, granted, err := b.Open(t.Context(), driver.SessionOptions{TTL: ttl, Gone: gone})
	if err != nil || granted != ttl {
		t.Fatalf("granted %s, %v", granted, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func noGone(string, error) {}

// calls is how many commands the servers have served whose names match.
func calls(t testing.TB, nodes []*backends.Redis, names string) (n int) {
	t.Helper()
	for _, node := range nodes {
		n += node.Calls(t, names)
	}
	return n
}

// joinFiles makes one file of several.
func joinFiles(t *testing.T, files []string) string {
	t.Helper()
	var all []byte
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b...)
	}
	joined := filepath.Join(t.TempDir(), "joined.pem")
	if err := os.WriteFile(joined, all, 0o600); err != nil {
		t.Fatal(err)
	}
	return joined
}
