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

// Two clients that use different formats on one name: the error names the other format and the
// cure; the key is left alone. The controls are keys of the right format, which are busy and no
// error.
func TestErrorNamesTheOtherFormat(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	const java = javaHolder
	rlock := []string{"HSET", java, "1"}
	for _, c := range []struct {
		strategy string
		put      []string // the command without its key
		want     []string // of the error; nil: busy
	}{
		{"queue", rlock, []string{"Redisson", "strategy=redisson"}},
		{"queue", []string{"SET", "kfj3Hd9akfj3Hd9akfj3Hw=="}, []string{"redsync", "strategy=setnx"}},
		{"queue", []string{"HSET", "hasp2", "1700000000000000"}, []string{"damaged", "remove it"}},
		{"queue", []string{"HSET", "hasp2", "1700000000000000 0 1 2", "one", "x"}, []string{"damaged", "remove it"}},
		{"setnx", rlock, []string{"Redisson", "strategy=redisson"}},
		{"setnx", []string{"HSET", "mode", "read", java, "1"}, []string{"read-write lock of Redisson"}},
		{"setnx", []string{"HSET", "hasp2", "1700000000000000"}, []string{"strategy=queue"}},
		{"setnx", []string{"RPUSH", "x"}, []string{"a list", "no lock known"}},
		{"redisson", []string{"SET", "0123456789abcdef0123456789abcdef"}, []string{"redis-py", "strategy=setnx"}},
		{"redisson", []string{"SET", "01JABC 1700000000000000 ana@web-3"}, []string{"hasp, strategy=setnx"}},
		{"redisson", []string{"HSET", "hasp2", "1700000000000000"}, []string{"strategy=queue"}},
		{"redisson", []string{"HSET", "mode", "write", java + ":write", "1"}, []string{"read-write lock of Redisson"}},
		{"setnx", []string{"SET", "kfj3Hd9akfj3Hd9akfj3Hw=="}, nil},
		{"redisson", rlock, nil},
	} {
		t.Run(c.strategy+" "+strings.Join(c.put[:2], " "), func(t *testing.T) {
			key := "orders"
			if c.strategy == "queue" {
				key = "hasp:{orders}"
			}
			do(t, server, "FLUSHALL")
			do(t, server, append([]string{c.put[0], key}, c.put[1:]...)...)
			before := do(t, server, "DUMP", key)
			cl := client(t, server.URL()+"?strategy="+c.strategy)
			var err error
			for range 5 { // the client does not wait long for the answer that says what is there
				began := time.Now()
				if _, err = cl.Mutex("orders").TryLock(t.Context()); !errors.Is(err, hasp.ErrMismatch) || time.Since(began) < time.Second {
					break
				}
			}
			if want := hasp.ErrBusy; c.want == nil {
				if !errors.Is(err, want) {
					t.Errorf("%v, want busy", err)
				}
				return
			}
			if !errors.Is(err, hasp.ErrMismatch) {
				t.Fatalf("%v, want a mismatch", err)
			}
			for _, w := range append(c.want, `"`+key+`"`) {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%v: says nothing of %s", err, w)
				}
			}
			if do(t, server, "DUMP", key) != before {
				t.Error("the key was touched")
			}
		})
	}
}

// The doctor finds such names by itself: those that hasp has once taken, or that begin with its
// prefix.
func TestDoctorFindsOtherFormats(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	for _, strategy := range []string{"queue", "setnx", "redisson"} {
		storeURL := server.URL() + "?strategy=" + strategy
		c := client(t, storeURL)
		held := testkit.Lock(t, c, strategy+"-held")
		if f, found := findings(t, storeURL)["dialects"]; found {
			t.Errorf("%s: %+v", strategy, f)
		}
		must(t, testkit.Lock(t, c, strategy).Release(t.Context()))
		key := strategy
		if strategy == "queue" {
			key = "hasp:{queue}"
		}
		do(t, server, "DEL", key)
		if strategy == "redisson" {
			do(t, server, "SET", key, "kfj3Hd9akfj3Hd9akfj3Hw==")
			testkit.WantFinding(t, findings(t, storeURL), "dialects", driver.Warn, "redsync")
		} else {
			do(t, server, "HSET", key, "8743c9c0-0795-4907-87fd-6c719a6b4586:1", "1")
			testkit.WantFinding(t, findings(t, storeURL), "dialects", driver.Warn, "a lock of Redisson")
		}
		must(t, held.Release(t.Context()))
	}
}

// javaHolder is a holder as Redisson writes it.
const javaHolder = "8743c9c0-0795-4907-87fd-6c719a6b4586:1"

// A name may be locked by one strategy after the other: what the first one has left beside the lock
// neither makes a release look like a loss, nor keeps a client from waiting. (Waiters and the
// description of a holder had one key.)
func TestStrategiesInTurn(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	for what, strategies := range map[string][2]string{
		"setnx after redisson": {"redisson", "setnx"},
		"redisson after setnx": {"setnx", "redisson"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			next := server.URL() + "?strategy=" + strategies[1]
			leave := func(name string) { dies(t, server, server.URL()+"?strategy="+strategies[0], name) }
			c := client(t, next)
			leave(what)
			if err := testkit.Lock(t, c, what).Release(t.Context()); err != nil {
				t.Errorf("release: %v", err)
			}
			leave(what + ", waiting")
			l := testkit.Lock(t, c, what+", waiting")
			waits := session(t, testkit.Open(t, next), time.Hour).Ticket(testkit.Request(l.Name()))
			if v, err := waits.Enqueue(t.Context()); err != nil || v.Held {
				t.Fatalf("beside a holder: %+v, %v", v, err)
			}
			must(t, l.Release(t.Context()))
			ctx, cancel := context.WithTimeout(t.Context(), slack)
			defer cancel()
			if v, err := waits.Wait(ctx); err != nil || !v.Held {
				t.Errorf("woken: %+v, %v", v, err)
			}
			must(t, waits.Leave(t.Context()))
		})
	}
}

// dies takes a lock, has another client wait for it, and renews nothing.
func dies(t *testing.T, server *backends.Redis, storeURL, name string) {
	t.Helper()
	held(t, storeURL, name, T)
	v, err := session(t, testkit.Open(t, storeURL), T).Ticket(testkit.Request(name)).Enqueue(t.Context())
	if err != nil {
		t.Fatalf("%+v, %v", v, err)
	}
	testkit.Eventually(t, "the end of the key", func() bool { return do(t, server, "EXISTS", name) == "0" })
}

// A lock of Redisson keeps a client waiting that finds waiters of setnx beside it, which have died.
func TestRedissonBesideOldWaiters(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	do(t, server, "ZADD", "hasp:lock:w:{x}", "1700000000000000", "session 01JABC")
	do(t, server, "HSET", "x", javaHolder, "1")
	c := client(t, server.URL()+"?strategy=redisson")
	if _, err := c.Mutex("x").TryLock(t.Context()); !errors.Is(err, hasp.ErrBusy) {
		t.Errorf("%v, want busy", err)
	}
}
