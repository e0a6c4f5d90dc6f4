package zklock

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// What a server refuses is told by the first answer, with the cause and the cure, and at once.
func TestRefusals(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	wants := func(t *testing.T, err error, words ...string) {
		t.Helper()
		for _, w := range words {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%v; want %q in it", err, w)
			}
		}
		if errors.Is(err, hasp.ErrUnknown) {
			t.Errorf("of unknown outcome: %v", err)
		}
	}
	t.Run("authentication", func(t *testing.T) {
		t.Parallel()
		z := backends.StartZooKeeper(t, backends.ZooKeeperOptions{Config: []string{"enforce.auth.enabled=true", "enforce.auth.schemes=digest"}})
		for _, strategy := range []Strategy{StrategyQueue, StrategyNode} {
			u := fmt.Sprintf("zookeeper://%s/%s?strategy=%s", z.Addr, strategy, strategy)
			c, err := openAt(t, u)
			if err == nil {
				_, err = c.Mutex("a").Lock(testkit.Context(t))
			}
			if strategy == StrategyNode { // each of its sessions has an identity
				if err != nil {
					t.Error(err)
				}
				continue
			}
			wants(t, err, "enforce.auth", "user and password")
			if !errors.Is(err, hasp.ErrRefused) {
				t.Errorf("not a refusal: %v", err)
			}
			c, err = openAt(t, strings.Replace(u, "//", "//user:s3cret@", 1))
			if err != nil {
				t.Fatal(err)
			}
			testkit.Release(t, testkit.Lock(t, c, "a"))
		}
	})
	t.Run("connections", func(t *testing.T) {
		t.Parallel()
		z := backends.StartZooKeeper(t, backends.ZooKeeperOptions{Config: []string{"maxClientCnxns=1"}})
		c, err := openAt(t, "zookeeper://"+z.Addr)
		if err != nil {
			t.Fatal(err)
		}
		testkit.Lock(t, c, "a")
		_, err = openAt(t, "zookeeper://"+z.Addr)
		wants(t, err, "maxClientCnxns")
		b, err := New([]string{z.Addr}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		_, err = b.List(testkit.Context(t), "a", 0)
		wants(t, err, "maxClientCnxns")
	})
	t.Run("TLS", func(t *testing.T) {
		t.Parallel()
		secure := backends.StartZooKeeper(t, backends.ZooKeeperOptions{TLS: true})
		_, err := openAt(t, "zookeeper://"+secure.Addr)
		wants(t, err, "tls=true")
		_, err = openAt(t, "zookeeper://"+backends.SharedZooKeeper(t).Addr+"?tls=true&ca="+secure.CA)
		wants(t, err, "tls=false", "secureClientPort")
	})
}
