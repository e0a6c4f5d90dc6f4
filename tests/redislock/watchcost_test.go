package redislock_test

import (
	"context"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// Who watches a name asks again when the holder may have expired, and not all the time since then:
// renewals do not move that moment in the store.
func TestWatchersAskSeldom(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	held := testkit.Lock(t, client(t, server.URL(), hasp.WithTTL(T)), "a")
	b := testkit.Open(t, server.URL())
	t.Cleanup(func() { _ = b.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	const watchers = 3
	ended := make(chan error, watchers)
	for range watchers {
		go func() { ended <- b.(driver.Watcher).Watch(ctx, "a", func() {}) }()
	}
	time.Sleep(T + T/2)
	before := server.Calls(t, "evalsha")
	time.Sleep(2 * T)
	asked := server.Calls(t, "evalsha") - before
	cancel()
	for range watchers {
		<-ended
	}
	if most := 6 + 2*3*watchers; held.Held() && asked > most { // its renewals, and two requests a TTL of each
		t.Errorf("%d requests in %s, want %d at most", asked, 2*T, most)
	}
}
