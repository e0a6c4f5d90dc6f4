package redislock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// Readers of a long queue get answers of any size, and the client's subscriptions and renewals go
// on: a server closes a connection that has subscriptions when its output piles up. (It was that of
// the requests, too: the answers counted, and renewals failed.)
func TestReadersOfLongQueue(t *testing.T) {
	t.Parallel()
	// 32 MB by default, which takes ten thousand waiters and as many readers as a busy page has.
	server := backends.StartRedis(t, backends.RedisOptions{Config: []string{"client-output-buffer-limit pubsub 16kb 0 0"}})
	b := testkit.Open(t, server.URL())
	s := session(t, b, time.Hour)
	const n, readers = 1000, 4
	fillQueue(t, s, "a", n, driver.Whole, driver.Whole)

	ctx, cancel := context.WithCancel(t.Context())
	watched, changed := make(chan error, 1), make(chan struct{}, 1)
	go func() {
		watched <- b.(driver.Watcher).Watch(ctx, "other", func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	}()
	<-changed // it stands
	var reading sync.WaitGroup
	for range readers {
		reading.Go(func() {
			if all, err := b.List(t.Context(), "a", 0); err != nil || len(all) != n {
				t.Errorf("%d of %d entries, %v", len(all), n, err)
			}
		})
	}
	if _, err := s.KeepAlive(testkit.Context(t)); err != nil {
		t.Errorf("a renewal: %v", err)
	}
	reading.Wait()
	cancel()
	if err := <-watched; !errors.Is(err, context.Canceled) {
		t.Errorf("the watch has ended: %v", err)
	}
	if log := server.Logs(); strings.Contains(log, "output buffer limits") {
		t.Errorf("the server has closed a connection: %s", log)
	}
}
