package redislock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

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

// S2: the first request after a quarantine finds waiters, which draw new tokens at their grant, and
// fits beside them. Its own token is a later one.
func TestTokensBesideGrantedWaiters(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	b := testkit.Open(t, server.URL())
	s := session(t, b, calm/2)
	permit := func() driver.Ticket {
		r := testkit.Request("a")
		r.Units, r.Capacity = 1, 3
		return s.Ticket(r)
	}
	first := permit()
	must(t, errors.Join(func() error { _, err := first.Enqueue(t.Context()); return err }(), first.Leave(t.Context())))
	do(t, server, "FLUSHALL")
	waiter := permit()
	if v := enter(t, waiter); v.Held {
		t.Fatalf("held in quarantine: %+v", v)
	}
	for { // renewed until shortly before the end: a renewal after it would grant
		left, err := b.(driver.Quarantiner).Quarantine(t.Context(), "a")
		must(t, err)
		if left < calm/20 {
			time.Sleep(left)
			break
		}
		_, err = s.KeepAlive(t.Context())
		must(t, err)
		time.Sleep(calm / 50)
	}
	var tokens []uint64
	for _, ticket := range []driver.Ticket{permit(), waiter, permit()} {
		v := enter(t, ticket)
		if !v.Held {
			t.Fatalf("%+v", v)
		}
		tokens = append(tokens, v.Token)
	}
	if !(tokens[1] < tokens[0] && tokens[0] < tokens[2]) {
		t.Errorf("the waiter has %d, the others %d and %d", tokens[1], tokens[0], tokens[2])
	}
}
