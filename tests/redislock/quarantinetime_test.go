package redislock_test

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// wantTry has a client try for a lock at a server.
func wantTry(t *testing.T, c *hasp.Client, name string, want error) {
	t.Helper()
	var err error
	for range 5 { // a busy machine may take longer than the client waits for an answer
		var l *hasp.Lease
		if l, err = c.Mutex(name).TryLock(t.Context()); err == nil {
			_ = l.Release(testkit.Context(t)) // a busy machine may have lost it
		}
		if errors.Is(err, want) {
			return
		}
		if errors.Is(err, hasp.ErrBusy) { // what a try without an answer has taken is taken for a TTL
			time.Sleep(T / 2)
		}
	}
	t.Errorf("try: %v, want %v", err, want)
}

// A server that was started again with its file grants nothing for a TTL from the first request on,
// however late that comes, be the client new or not: nothing says when the reign that its mark is of
// has ended. It closes once. One that was started without data has forgotten nothing since its start.
func TestRestartLongAgo(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{"queue", "setnx", "redisson"} {
		for _, file := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/file=%t", strategy, file), func(t *testing.T) {
				t.Parallel()
				server := backends.StartRedis(t, backends.RedisOptions{AppendOnly: file, AppendFsync: "always"})
				storeURL := server.URL() + "?strategy=" + strategy
				told := client(t, storeURL, hasp.WithTTL(T))
				testkit.UseDespiteErrors(t, told, "a")
				restarted(t, server)
				upFor(t, server, T)
				if file {
					wantTry(t, client(t, storeURL, hasp.WithTTL(T)), "a", hasp.ErrQuarantine)
					testkit.UseDespiteErrors(t, client(t, storeURL, hasp.WithTTL(T)), "a")
				}
				wantTry(t, told, "b", nil)
				wantTry(t, client(t, storeURL, hasp.WithTTL(T)), "a", nil)
				restarted(t, server) // the control
				wantTry(t, client(t, storeURL, hasp.WithTTL(10*time.Minute)), "a", hasp.ErrQuarantine)
			})
		}
	}
}

// A server that was given keys from elsewhere (RESTORE, which moves the slots of a cluster, too),
// or does not tell what was done to it, may have forgotten something just now.
func TestStartSaysNothing(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	forgetTheWord(t, server)
	upFor(t, server, T)
	open := func(user, prefix string) *hasp.Client {
		return client(t, "redis://"+user+server.Addr+"?prefix="+prefix, hasp.WithTTL(T))
	}
	wantTry(t, open("", "control:"), "a", nil)
	if backends.RedisVersion() != "6.2" { // which cannot allow a part of INFO
		do(t, server, "ACL", "SETUSER", "part", "on", ">secret", "~*", "&*", "+@all", "-info", "+info|server", "+info|replication", "+info|stats")
		wantTry(t, open("part:secret@", "part:"), "a", hasp.ErrQuarantine)
	}
	do(t, server, "EVAL", "redis.call('SET', 'x', '1') redis.call('RESTORE', 'y', 0, redis.call('DUMP', 'x'))", "0")
	wantTry(t, open("", "restored:"), "a", hasp.ErrQuarantine)
}

// ago makes the mark look as if it had been written so much earlier, or later if that is negative,
// by the server's clock.
func ago(t *testing.T, server *backends.Redis, strategy string, d time.Duration) {
	t.Helper()
	mark := "hasp:lock:mark"
	if strategy == "queue" {
		mark = "hasp:mark"
	}
	do(t, server, "EVAL", `local id, bound, start = string.match(redis.call('HGET', KEYS[1], 'told'), '^(%S+) (%d+) (%d+) $')
		local function earlier(x) return string.format('%.0f', math.max(x - ARGV[1], 1)) end
		redis.call('HSET', KEYS[1], 'told', id .. ' ' .. bound .. ' ' .. earlier(start) .. ' ')
		for _, field in ipairs({ 'till', 'fresh', 'ends', 'since' }) do
			redis.call('HSET', KEYS[1], field, earlier(redis.call('HGET', KEYS[1], field)))
		end`, "1", mark, strconv.FormatInt(d.Microseconds(), 10))
}

// The server's clock is set back by eight hours during a quarantine: that ends a TTL later all the
// same, and so it does after a restart.
func TestClockSetBackInQuarantine(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprint("restart=", restart), func(t *testing.T) {
			t.Parallel()
			server := backends.StartRedis(t, backends.RedisOptions{})
			c := client(t, server.URL(), hasp.WithTTL(T))
			testkit.UseDespiteErrors(t, c, "a")
			do(t, server, "FLUSHALL")
			wantTry(t, c, "a", hasp.ErrQuarantine)
			ago(t, server, "queue", -8*time.Hour)
			if restart {
				do(t, server, "SAVE")
				restarted(t, server)
			}
			q, err := testkit.Again(t.Context(), func() (hasp.Queue, error) { return c.Inspect(t.Context(), "a") })
			if err != nil || q.Quarantine > T {
				t.Errorf("%s, %v", q.Quarantine, err)
			}
			testkit.Release(t, testkit.LockDespiteErrors(t, c, "a")) // testkit.Patience is shorter than hours
		})
	}
}

// A TTL of a day, used once, closes no client out for a day after a restart once it has not been
// used for two days. One that was used since then does.
func TestLongTTLIsForgotten(t *testing.T) {
	t.Parallel()
	for _, days := range []int{1, 2} {
		t.Run(fmt.Sprint(days), func(t *testing.T) {
			t.Parallel()
			server := backends.StartRedis(t, backends.RedisOptions{})
			const day = 24 * time.Hour
			testkit.Release(t, testkit.Lock(t, client(t, server.URL(), hasp.WithTTL(day)), "a"))
			for range days {
				ago(t, server, "queue", day)
				testkit.UseDespiteErrors(t, client(t, server.URL(), hasp.WithTTL(T)), "b")
			}
			do(t, server, "SAVE")
			restarted(t, server)
			c := client(t, server.URL(), hasp.WithTTL(T))
			q, err := testkit.Again(t.Context(), func() (hasp.Queue, error) { return c.Inspect(t.Context(), "a") })
			must(t, err)
			if forgotten := q.Quarantine <= T; forgotten != (days == 2) {
				t.Errorf("after %d days without such a lock the server is closed for %s", days, q.Quarantine)
			}
		})
	}
}
