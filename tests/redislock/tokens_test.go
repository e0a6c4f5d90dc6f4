package redislock_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// S2: when tokens cannot grow any more the store says so, and grants nothing. (From 2^53 on a
// number in Lua and the next one are the same: every grant had the token of the one before.) A
// server's clock that was once far ahead brings a name there.
func TestTokensEnd(t *testing.T) {
	t.Parallel()
	const last = "9007199254740991" // 2^53 - 1
	for _, c := range []struct {
		strategy, key string
		put           []string // the last token but one
		lock          string   // the field or key that exists while the lock is held
	}{
		{"queue", "hasp:{a}", []string{"HSET", "hasp:{a}", "hasp2", "9007199254740990 0"}, "hasp:{a} one"},
		{"queue", "hasp:{a}", []string{"HSET", "hasp:{a}", "hasp2", "9007199254740990 0 0 0 0 0 1 0 0 1"}, "hasp:{a} one"},
		{"setnx", "hasp:lock:t:{a}", []string{"SET", "hasp:lock:t:{a}", "9007199254740990"}, "a"},
		{"redisson", "hasp:lock:t:{a}", []string{"SET", "hasp:lock:t:{a}", "9007199254740990"}, "a"},
	} {
		t.Run(c.strategy+" "+c.put[len(c.put)-1], func(t *testing.T) {
			t.Parallel()
			server := backends.StartRedis(t, backends.RedisOptions{})
			do(t, server, c.put...)
			cl := client(t, server.URL()+"?strategy="+c.strategy)
			l := testkit.Lock(t, cl, "a")
			if l.Token() != 1<<53-1 {
				t.Fatalf("token %d, want %s", l.Token(), last)
			}
			renewed(t, l)
			must(t, l.Release(t.Context()))
			for _, try := range []func() (*hasp.Lease, error){
				func() (*hasp.Lease, error) { return cl.Mutex("a").Lock(t.Context()) },
				func() (*hasp.Lease, error) { return cl.Mutex("a").TryLock(t.Context()) },
			} {
				l, err := try()
				if !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), c.key) {
					t.Errorf("beyond the last token: %v, %v", l, err)
				}
			}
			lockKey, field, hash := strings.Cut(c.lock, " ")
			if hash && do(t, server, "HEXISTS", lockKey, field) != "0" || !hash && do(t, server, "EXISTS", lockKey) != "0" {
				t.Error("refused, and taken")
			}
			do(t, server, "DEL", c.key) // the cure that the error names
			must(t, testkit.Lock(t, cl, "a").Release(t.Context()))
		})
	}
}
