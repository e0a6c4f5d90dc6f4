package redislock_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
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
	}
	t.Errorf("try: %v, want %v", err, want)
}

// A server that has been up for longer than a TTL has forgotten nothing since its start, however
// late the first request comes: a nightly try is not refused, be the client new or not.
func TestRestartLongAgo(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{"queue", "setnx", "redisson"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			server := backends.StartRedis(t, backends.RedisOptions{AppendOnly: true, AppendFsync: "always"})
			storeURL := server.URL() + "?strategy=" + strategy
			c := client(t, storeURL, hasp.WithTTL(T))
			testkit.UseDespiteErrors(t, c, "a")
			restarted(t, server)
			upFor(t, server, T)
			wantTry(t, c, "b", nil)
			wantTry(t, client(t, storeURL, hasp.WithTTL(T)), "a", nil)
			restarted(t, server) // the control
			wantTry(t, client(t, storeURL, hasp.WithTTL(10*time.Minute)), "a", hasp.ErrBusy)
		})
	}
}

// In a cluster that is so for each slot.
func TestRestartLongAgoOfACluster(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	cluster := backends.StartRedisCluster(t)
	for _, n := range cluster.Nodes {
		do(t, n, "CONFIG", "SET", "cluster-node-timeout", "120000") // no failover
		do(t, n, "CONFIG", "SET", "appendonly", "yes")
		do(t, n, "CONFIG", "SET", "appendfsync", "always")
		do(t, n, "CONFIG", "REWRITE")
	}
	storeURL := "redis://" + strings.Join(cluster.Addrs(), ",")
	c := client(t, storeURL, hasp.WithTTL(T))
	var names []string
	for i := range 10 {
		names = append(names, fmt.Sprint("n", i))
		testkit.UseDespiteErrors(t, c, names[i])
	}
	for _, n := range cluster.Nodes[:3] {
		testkit.Eventually(t, "the file", func() bool {
			return strings.Contains(do(t, n, "INFO", "persistence"), "aof_rewrite_in_progress:0")
		})
		restarted(t, n)
	}
	for _, n := range cluster.Nodes[:3] {
		upFor(t, n, T)
	}
	fresh := client(t, storeURL, hasp.WithTTL(T))
	for _, name := range names {
		wantTry(t, fresh, name, nil)
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
		wantTry(t, open("part:secret@", "part:"), "a", hasp.ErrBusy)
	}
	do(t, server, "EVAL", "redis.call('SET', 'x', '1') redis.call('RESTORE', 'y', 0, redis.call('DUMP', 'x'))", "0")
	wantTry(t, open("", "restored:"), "a", hasp.ErrBusy)
}

// setMark changes the numbers of the mark as Lua's string.gsub does.
func setMark(t *testing.T, server *backends.Redis, script string) {
	t.Helper()
	do(t, server, "EVAL", `local mark = redis.call('GET', 'hasp:mark2')
		local till, rest, version, id = string.match(mark, '^(%d+) (.*) (%d+) (%S+)$')
		local t = redis.call('TIME')
		local now = t[1] * 1000000 + t[2]
		local function number(x) return string.format('%.0f', x) end
		`+script+`
		redis.call('SET', 'hasp:mark2', number(till) .. ' ' .. rest .. ' ' .. number(version) .. ' ' .. id)`, "0")
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
			wantTry(t, c, "a", hasp.ErrBusy)
			setMark(t, server, "till, version = till + 8 * 3600 * 1e6, version + 8 * 3600 * 1e6")
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
			for range days { // it looks as if the last change of the mark were a day ago, to a client that knows no later one
				setMark(t, server, "version = now - 24 * 3600 * 1e6")
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
