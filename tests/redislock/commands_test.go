package redislock_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// inScripts are the commands that scripts use.
const inScripts = "time|get|set|del|exists|pttl|pexpire|pexpireat|hget|hmget|hset|hdel|hgetall|publish|zadd|zrem|zpopmin|zrange"

// The commands within the scripts are what a lock costs the server: docs/internals/redis.md has
// their numbers. Sessions without the core make no other requests.
func TestCommandsInScripts(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	s := session(t, testkit.Open(t, server.URL()), time.Hour)
	dialect := session(t, testkit.Open(t, server.URL()+"?strategy=setnx"), time.Hour)
	enter := func(s driver.Session, name string) (driver.Ticket, driver.Verdict) {
		t.Helper()
		ticket := s.Ticket(testkit.Request(name))
		v, err := ticket.Enqueue(t.Context())
		must(t, err)
		return ticket, v
	}
	cycle := func(s driver.Session, name string) {
		t.Helper()
		ticket, v := enter(s, name)
		if !v.Held {
			t.Fatalf("%q is not free: %+v", name, v)
		}
		must(t, ticket.Leave(t.Context()))
	}
	const n = 20
	costs := func(what string, want int, f func(i int)) {
		t.Helper()
		f(0) // loads the script, and sets a new key's expiry
		// The least of several rounds: a session renews its waiters once when it listens, and a
		// busy machine does so late.
		least := math.Inf(1)
		for round := 0; round < 3 && least > float64(want); round++ {
			before := server.Calls(t, inScripts)
			for i := range n {
				f(round*n + i + 1)
			}
			least = min(least, float64(server.Calls(t, inScripts)-before)/n)
		}
		if least > float64(want) {
			t.Errorf("%s: %.2f commands, want %d", what, least, want)
		}
	}
	costs("take and release a free lock", 6, func(int) { cycle(s, "a") })
	costs("the same with a new name", 8, func(i int) { cycle(s, fmt.Sprint("new", i)) })
	held, _ := enter(s, "b")
	costs("wait, and be granted by a release", 11, func(int) {
		next, v := enter(s, "b")
		if v.Held {
			t.Fatal("two hold")
		}
		must(t, held.Leave(t.Context()))
		held = next
	})
	costs("renew a lone lock", 5, func(int) {
		_, err := s.KeepAlive(t.Context())
		must(t, err)
	})
	costs("setnx: take and release a free lock", 10, func(int) { cycle(dialect, "c") })
}

// A client has two connections, one for requests and one for what it is told, also when many
// requests are under way at the same time.
func TestConnections(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	connected := func(when string, least, most int) {
		t.Helper()
		testkit.Until(t, fmt.Sprintf("%d to %d connections %s", least, most, when), func() error {
			if n := strings.Count(do(t, server, "CLIENT", "LIST"), " name=hasp "); n < least || n > most {
				return fmt.Errorf("%d", n)
			}
			return nil
		})
	}
	holds, waits := client(t, server.URL()), client(t, server.URL())
	l := testkit.Lock(t, holds, "a")
	must(t, testkit.Lock(t, waits, "b").Release(t.Context()))
	connected("for two clients", 4, 4)
	got := testkit.Queued(t, waits, "a")
	connected("with one that waits", 4, 4)
	must(t, l.Release(t.Context()))
	must(t, testkit.Granted(t, got).Release(t.Context()))
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			for range 20 {
				// A pause may lose an answer, and then the outcome is rightly unknown.
				if err := testkit.Lock(t, holds, fmt.Sprint("n", i)).Release(t.Context()); err != nil && !errors.Is(err, hasp.ErrUnknown) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	connected("after many requests at once", 4, 4)
}
