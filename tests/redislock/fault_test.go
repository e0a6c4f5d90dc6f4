package redislock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// O1, S2: however the key is removed, the holder learns at its next renewal that the store denies
// it; the next token is higher although the server has forgotten the last.
func TestKeyRemoved(t *testing.T) {
	for strategy, key := range map[string]string{"queue": "hasp:{orders}", "setnx": "orders", "redisson": "orders"} {
		for _, how := range [][]string{{"DEL", key}, {"FLUSHALL"}, {"SET", key, "another program's"}} {
			t.Run(strategy+"/"+how[0], func(t *testing.T) {
				t.Parallel()
				server := backends.StartRedis(t, backends.RedisOptions{})
				c := client(t, server.URL()+"?strategy="+strategy)
				l := testkit.Lock(t, c, "orders")
				do(t, server, how...)
				testkit.Lost(t, l, hasp.ReasonDenied)
				if err := l.Release(t.Context()); !errors.Is(err, hasp.ErrLost) {
					t.Errorf("release: %v", err)
				}
				if how[0] == "SET" {
					if got := do(t, server, "GET", key); got != "another program's" {
						t.Errorf("the foreign key has become %q", got)
					}
					return
				}
				next := testkit.Lock(t, c, "orders")
				if next.Token() <= l.Token() {
					t.Errorf("token %d after %d", next.Token(), l.Token())
				}
			})
		}
	}
}

// A waiter whose entry went with the key queues again, and is served.
func TestWaiterOutlivesFlush(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	c, other := client(t, server.URL()), client(t, server.URL())
	held := testkit.Lock(t, c, "orders")
	got := testkit.Queued(t, other, "orders")
	do(t, server, "FLUSHALL")
	next := testkit.Granted(t, got)
	if next.Token() <= held.Token() {
		t.Errorf("token %d after %d", next.Token(), held.Token())
	}
}

// A key that hasp did not write is refused and left alone, by every strategy.
func TestForeignKey(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	for _, strategy := range []string{"queue", "setnx", "redisson"} {
		key := map[string]string{"queue": "hasp:{orders}"}[strategy]
		if key == "" {
			key = "orders"
		}
		for kind, make := range map[string][]string{
			"string": {"SET", key, "x"}, "list": {"RPUSH", key, "x"}, "set": {"SADD", key, "x"}, "hash": {"HSET", key, "x", "y"},
		} {
			if strategy == "setnx" && kind == "string" || strategy == "redisson" && kind == "hash" {
				continue // that is the format of a lock there
			}
			t.Run(strategy+"/"+kind, func(t *testing.T) {
				do(t, server, "FLUSHALL")
				do(t, server, make...)
				before := do(t, server, "DUMP", key)
				c := client(t, server.URL()+"?strategy="+strategy)
				ctx, cancel := context.WithTimeout(t.Context(), slack)
				defer cancel()
				_, err := c.Mutex("orders").Lock(ctx)
				if !errors.Is(err, hasp.ErrMismatch) || !strings.Contains(err.Error(), "did not write") {
					t.Errorf("lock: %v", err)
				}
				if _, err := c.Inspect(ctx, "orders"); !errors.Is(err, hasp.ErrMismatch) {
					t.Errorf("inspect: %v", err)
				}
				if do(t, server, "DUMP", key) != before {
					t.Error("the foreign key was changed")
				}
			})
		}
	}
}

// The server forgets its scripts: no client notices.
func TestScriptFlush(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	c, other := client(t, server.URL()), client(t, server.URL())
	l := testkit.Lock(t, c, "a")
	got := testkit.Queued(t, other, "a")
	do(t, server, "SCRIPT", "FLUSH")
	renewed(t, l)
	flushed := false
	for range 10 { // a renewal may load one again before the check
		do(t, server, "SCRIPT", "FLUSH")
		if flushed = strings.Contains(do(t, server, "INFO", "memory"), "number_of_cached_scripts:0\r\n"); flushed {
			break
		}
	}
	if !flushed {
		t.Fatal("the server still knows scripts")
	}
	if err := l.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := testkit.Granted(t, got).Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// Every connection is killed, again and again. Holders keep their locks, waiters their
// places, and a grant whose message was lost is found.
func TestClientKill(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	c, other := client(t, server.URL()), client(t, server.URL())
	l, kept := testkit.Lock(t, c, "a"), testkit.Lock(t, c, "b")
	got := testkit.Queued(t, other, "a")
	before := testkit.Entries(t, other, "a")
	for range 5 {
		do(t, server, "CLIENT", "KILL", "TYPE", "normal")
		do(t, server, "CLIENT", "KILL", "TYPE", "pubsub")
		time.Sleep(500 * time.Millisecond)
	}
	if after := testkit.Entries(t, other, "a"); len(after) != 2 || after[1].ID != before[1].ID {
		t.Errorf("the queue was %v and is %v", before, after)
	}
	do(t, server, "CLIENT", "KILL", "TYPE", "pubsub") // no client receives the message
	if err := l.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if next := testkit.Granted(t, got); next.ID() != before[1].ID {
		t.Error("another entry than the one that waited was granted")
	}
	if !kept.Held() {
		t.Error(kept.Err())
	}
}

// With memory full and noeviction nothing can be acquired, but held locks are renewed and can be
// released, and the next waiter is granted.
func TestMemoryFull(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	c, other := client(t, server.URL()), client(t, server.URL())
	l := testkit.Lock(t, c, "a")
	got := testkit.Queued(t, other, "a")
	do(t, server, "CONFIG", "SET", "maxmemory", "1")
	if out, err := server.Do("SET", "x", "y"); err == nil {
		t.Fatalf("the server still has memory: %s", out)
	}
	// Reported at once, and not when the caller's context ends.
	if _, err := c.Mutex("b").Lock(t.Context()); !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("lock with memory full: %v", err)
	}
	renewed(t, l)
	if err := l.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := testkit.Granted(t, got)
	renewed(t, next)
	if err := next.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// With maxclients reached new clients fail by their context, and the old ones go on.
func TestMaxClients(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	c := client(t, server.URL())
	l := testkit.Lock(t, c, "a")
	// The server reserves some connections; the present ones stay.
	do(t, server, "CONFIG", "SET", "maxclients", "1")
	ctx, cancel := context.WithTimeout(t.Context(), T)
	defer cancel()
	if c, err := hasp.Open(ctx, server.URL()); err == nil {
		c.Close()
		t.Error("a new client could connect")
	}
	renewed(t, l)
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// The server is killed and started again: with its append-only file the hold survives, without it
// the hold is reported lost; in both cases the next token is higher.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]backends.RedisOptions{
		"durable": {AppendOnly: true, AppendFsync: "always"}, "forgetful": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := backends.StartRedis(t, o)
			ttl := calm
			if o.AppendOnly {
				ttl = onDisk
			}
			c := client(t, server.URL(), hasp.WithTTL(ttl))
			l := testkit.Lock(t, c, "a")
			if err := server.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := server.Restart(); err != nil {
				t.Fatal(err)
			}
			if o.AppendOnly {
				renewed(t, l)
				releaseOnDisk(t, l)
			} else {
				testkit.Lost(t, l, hasp.ReasonDenied)
			}
			if next := testkit.Lock(t, c, "a"); next.Token() <= l.Token() {
				t.Errorf("token %d after %d", next.Token(), l.Token())
			}
		})
	}
}

// O2: a wrong password is refused at once, and not shown.
func TestWrongPassword(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{User: "ana", Password: "se:cr@et"})
	if l := testkit.Lock(t, client(t, server.URL()), "a"); !l.Held() {
		t.Error(l.Err())
	}
	_, err := hasp.Open(t.Context(), "redis://ana:wr0ng@"+server.Addr)
	if !errors.Is(err, driver.ErrInvalid) || strings.Contains(err.Error(), "wr0ng") {
		t.Errorf("wrong password: %v", err)
	}
}
