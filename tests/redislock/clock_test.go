package redislock_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// setBack has the effect on a queue that setting the server's clock back has: every stored moment
// becomes later in relation to the clock. (A server whose clock was set back by a preloaded
// library gave the same result.)
func setBack(t *testing.T, server *backends.Redis, key string, by time.Duration) {
	t.Helper()
	do(t, server, "EVAL", `
		local K, by = KEYS[1], tonumber(ARGV[1])
		local function later(s) return string.format('%.0f', tonumber(s) + by) end
		local hash = redis.call('HGETALL', K)
		for i = 1, #hash, 2 do
			local field, value = hash[i], hash[i + 1]
			if field == 'hasp1' then
				value = string.gsub(value, '^(%d+) (%d+)', function(a, b) return later(a) .. ' ' .. string.format('%.0f', b + by / 1000) end)
				value = string.gsub(value, '^(%d+ %d+ %d+ %d+ %d+ )(%d+)', function(a, b) return a .. later(b) end)
			elseif field == 'one' or string.find(field, '^[hw]:') then
				value = string.gsub(value, '^(%S+ )(%d+) (%d+)', function(a, b, c) return a .. later(b) .. ' ' .. later(c) end)
			end
			redis.call('HSET', K, field, value)
		end
		redis.call('PEXPIRE', K, redis.call('PTTL', K) + by / 1000)`, "1", key, strconv.FormatInt(by.Microseconds(), 10))
}

// The server's clock is set back by an hour while a semaphore is held. A client that goes on
// renewing stays a holder, and no other holds in its place. A holder that dies after a renewal is
// removed when its TTL is over, and not an hour later. (The next look for expired holders stood
// at a moment of the old clock.) A holder that dies without a renewal stays for the hour, as
// documented.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	clockSetBack(t, server.URL(), func() { setBack(t, server, "hasp:{sem}", time.Hour) })
}

func clockSetBack(t *testing.T, storeURL string, step func()) {
	enter := func(s driver.Session) (driver.Ticket, driver.Verdict) {
		t.Helper()
		r := testkit.Request("sem")
		r.Units, r.Capacity = 1, 2
		ticket := s.Ticket(r)
		v, err := ticket.Enqueue(t.Context())
		must(t, err)
		return ticket, v
	}
	sessions := make([]driver.Session, 3)
	for i := range sessions {
		sessions[i] = session(t, testkit.Open(t, storeURL), T)
	}
	_, first := enter(sessions[0])
	_, second := enter(sessions[1])
	waiter, third := enter(sessions[2])
	if !first.Held || !second.Held || third.Held {
		t.Fatalf("%+v, %+v, %+v", first, second, third)
	}
	step()
	renew := func(some ...driver.Session) {
		t.Helper()
		for _, s := range some {
			if _, err := s.KeepAlive(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	// All renew for more than a TTL: nothing changes.
	for began := time.Now(); time.Since(began) < 2*T; time.Sleep(T / 8) {
		renew(sessions...)
		if v, err := waiter.Enqueue(t.Context()); err != nil || v.Held {
			t.Fatalf("three hold two permits: %+v, %v", v, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), slack)
	defer cancel()
	for { // the second has died
		renew(sessions[0], sessions[2])
		v, err := waiter.Enqueue(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a holder that died %s ago is still there: %+v", slack, v)
		}
		must(t, err)
		if v.Held {
			if v.Token <= second.Token {
				t.Errorf("token %d after %d", v.Token, second.Token)
			}
			return
		}
		time.Sleep(T / 8)
	}
}
