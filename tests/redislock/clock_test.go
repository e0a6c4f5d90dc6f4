package redislock_test

import (
	"context"
	"errors"
	"fmt"
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
			if field == 'hasp2' then
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
	for round := range 4 {
		if clockSetBack(t, server, fmt.Sprint("sem", round), T<<round) {
			return
		}
	}
	t.Skip("inconclusive: this machine paused for seconds in each round")
}

// threeFor are three clients that have asked for two permits of a semaphore, and are renewed by
// hand.
type threeFor struct {
	sessions      []driver.Session
	first, second driver.Verdict
	waiter        driver.Ticket
	third         driver.Verdict

	renewed time.Time     // before the last request that gave each of them a TTL
	longest time.Duration // between two such requests
}

func enterThree(t *testing.T, storeURL, name string, ttl time.Duration) *threeFor {
	t.Helper()
	c := new(threeFor)
	for range 3 {
		c.sessions = append(c.sessions, session(t, testkit.Open(t, storeURL), ttl))
	}
	ask := func(s driver.Session) (driver.Ticket, driver.Verdict) {
		r := testkit.Request(name)
		r.Units, r.Capacity = 1, 2
		ticket := s.Ticket(r)
		return ticket, enter(t, ticket)
	}
	c.renewed = time.Now()
	_, c.first = ask(c.sessions[0])
	_, c.second = ask(c.sessions[1])
	c.waiter, c.third = ask(c.sessions[2])
	return c
}

func (c *threeFor) renew(ctx context.Context, some ...driver.Session) error {
	began := time.Now()
	for _, s := range some {
		if _, err := s.KeepAlive(ctx); err != nil {
			return err
		}
	}
	c.longest = max(c.longest, time.Since(c.renewed))
	c.renewed = began
	return nil
}

// paused reports whether so much time was between two renewals that the shortest of these leases
// has rightly ended, or a request was given up after three seconds.
func (c *threeFor) paused() bool { return max(c.longest, time.Since(c.renewed)) > T }

// clockSetBack returns false if the machine paused for so long that what it saw says nothing.
func clockSetBack(t *testing.T, server *backends.Redis, name string, ttl time.Duration) (counts bool) {
	c := enterThree(t, server.URL(), name, ttl)
	wrong := func(format string, args ...any) bool {
		t.Helper()
		if !c.paused() {
			t.Fatalf(format, args...)
		}
		t.Logf("after a pause: "+format, args...)
		return false
	}
	if !c.first.Held || !c.second.Held || c.third.Held {
		return wrong("%+v, %+v, %+v", c.first, c.second, c.third)
	}
	setBack(t, server, "hasp:{"+name+"}", time.Hour)
	// All renew for more than a TTL: nothing changes.
	for began := time.Now(); time.Since(began) < 2*ttl; time.Sleep(ttl / 8) {
		if err := c.renew(t.Context(), c.sessions...); err != nil {
			return wrong("renewal: %v", err)
		}
		if v, err := c.waiter.Enqueue(t.Context()); err != nil || v.Held {
			return wrong("three hold two permits: %+v, %v", v, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), slack)
	defer cancel()
	for { // the second has died
		if err := c.renew(t.Context(), c.sessions[0], c.sessions[2]); err != nil {
			return wrong("renewal: %v", err)
		}
		v, err := c.waiter.Enqueue(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			return wrong("a holder that died %s ago is still there: %+v", slack, v)
		}
		if err != nil {
			return wrong("the waiter: %v", err)
		}
		if v.Held {
			if v.Token <= c.second.Token {
				t.Errorf("token %d after %d", v.Token, c.second.Token)
			}
			return true
		}
		time.Sleep(ttl / 8)
	}
}
