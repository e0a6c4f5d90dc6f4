package redlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// Servers whose mark is of another format have no vote. A minority of them is as good as away; a
// majority refuses, at the first use, and says what to do.
func TestOtherMark(t *testing.T) {
	t.Parallel()
	nodes := backends.StartRedisNodes(t, 3, backends.RedisOptions{})
	storeURL := "redlock://" + nodes[0].Addr + "," + nodes[1].Addr + "," + nodes[2].Addr
	testkit.UseDespiteErrors(t, client(t, storeURL), "a")
	for i, n := range nodes {
		do(t, n, "HSET", "hasp:lock:mark", "told", "5.0a1b2c3d.1700000000000000 2000000 1700000000000000 ")
		ctx, cancel := context.WithTimeout(t.Context(), slack)
		defer cancel()
		c := client(t, storeURL)
		if i == 0 {
			l, err := c.Mutex("a").Lock(ctx)
			if err != nil {
				t.Fatalf("one server of another format: %v", err)
			}
			testkit.Release(t, l)
			continue
		}
		_, try := c.Mutex("a").TryLock(ctx)
		_, lock := c.Mutex("a").Lock(ctx)
		for what, err := range map[string]error{"a try": try, "a lock": lock} {
			if !errors.Is(err, hasp.ErrInvalid) || !strings.Contains(err.Error(), "the key hasp:lock:mark has format 5, of a newer hasp") {
				t.Errorf("%d servers of another format: %s: %v", i+1, what, err)
			}
		}
	}
}
