package redislock_test

import (
	"bufio"
	"context"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// These tests play the other libraries' side of the formats, byte for byte: the requests and
// answers of redsync, redislock, node-redlock and redis-py, or Redisson.

const compareAndDelete = `if redis.call("get",KEYS[1]) == ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end`

// A key that another library holds keeps us out until it is deleted, and one that we hold keeps
// the other out; neither can delete the other's.
func TestSetNXFormat(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	c := client(t, server.URL()+"?strategy=setnx")
	do(t, server, "SET", "orders", "kfj3Hd9=", "PX", "60000", "NX")
	if _, err := c.Mutex("orders").TryLock(t.Context()); err == nil || !strings.Contains(err.Error(), "kfj3Hd9=") {
		t.Errorf("try while another library holds: %v", err)
	}
	got := make(chan *hasp.Lease, 1)
	go func() { l, _ := c.Mutex("orders").Lock(t.Context()); got <- l }()
	time.Sleep(100 * time.Millisecond)
	if len(got) > 0 {
		t.Fatal("granted while another library holds")
	}
	if out := do(t, server, "EVAL", compareAndDelete, "1", "orders", "kfj3Hd9="); out != "1" {
		t.Fatalf("the other's release: %s", out)
	}
	l := testkit.Granted(t, got)
	if l.Token() == 0 {
		t.Error("no token")
	}
	value := do(t, server, "GET", "orders")
	if !strings.HasPrefix(value, l.ID()+" ") || do(t, server, "TYPE", "orders") != "string" {
		t.Errorf("our value is %q", value)
	}
	if ttl, _ := strconv.Atoi(do(t, server, "PTTL", "orders")); ttl <= 0 || ttl > int(calm.Milliseconds()) {
		t.Errorf("our key expires in %d ms", ttl)
	}
	if out := do(t, server, "SET", "orders", "other", "PX", "60000", "NX"); out != "(nil)" {
		t.Errorf("the other library took it: %s", out)
	}
	if out := do(t, server, "EVAL", compareAndDelete, "1", "orders", "other"); out != "0" {
		t.Errorf("the other library released it: %s", out)
	}
	do(t, server, "SET", "orders", "other") // against the rules of the format
	testkit.Lost(t, l, hasp.ReasonDenied)
	if do(t, server, "GET", "orders") != "other" {
		t.Error("the other's key was touched")
	}
}

// A lock whose key never expires is held until its holder gives it back: a try, a wait and a listing
// say so, and the doctor. The controls are keys with an expiry, and the lock of a client that lives,
// whose next renewal sets one again.
func TestLockThatNeverExpires(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	const says = "never expires"
	for strategy, put := range map[string][]string{"setnx": {"SET", "setnx", "kfj3Hd9="}, "redisson": {"HSET", "redisson", javaHolder, "1"}} {
		t.Run(strategy, func(t *testing.T) {
			storeURL := server.URL() + "?strategy=" + strategy
			c := client(t, storeURL)
			l := testkit.Lock(t, c, strategy)
			do(t, server, "PERSIST", strategy)
			testkit.WantFinding(t, findings(t, storeURL), "expiry", driver.Warn, says)
			testkit.Eventually(t, "an expiry", func() bool { return do(t, server, "PTTL", strategy) != "-1" })
			must(t, l.Release(t.Context()))

			do(t, server, put...)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, waited := c.Mutex(strategy).Lock(ctx)
			_, tried := c.Mutex(strategy).TryLock(t.Context())
			q, err := c.Inspect(t.Context(), strategy)
			if err != nil || len(q.Holders) != 1 {
				t.Fatalf("%+v, %v", q, err)
			}
			for what, text := range map[string]string{"a wait": waited.Error(), "a try": tried.Error(), "a listing": q.Holders[0].Owner.String()} {
				if !strings.Contains(text, put[2]) || !strings.Contains(text, says) {
					t.Errorf("%s says: %s", what, text)
				}
			}
			testkit.WantFinding(t, findings(t, storeURL), "expiry", driver.Warn, says)

			do(t, server, "PEXPIRE", strategy, "3600000")
			if _, err := c.Mutex(strategy).TryLock(t.Context()); err == nil || strings.Contains(err.Error(), says) {
				t.Errorf("of a key with an expiry: %v", err)
			}
			if f, found := findings(t, storeURL)["expiry"]; found {
				t.Errorf("of a key with an expiry: %+v", f)
			}
			do(t, server, "DEL", strategy)
			died := strategy + "-died"
			held(t, storeURL, died, time.Hour)
			do(t, server, "PERSIST", died)
			if _, err := c.Mutex(died).TryLock(t.Context()); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("of a client's key that renews no more: %v", err)
			}
		})
	}
}

// The counter of the tokens is at the key that ?fence_prefix= says; with fence=off there is none.
func TestFenceOption(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	l := testkit.Lock(t, client(t, server.URL()+"?strategy=setnx&fence_prefix=shop:fence:"), "orders")
	if got := do(t, server, "GET", "shop:fence:{orders}"); got != strconv.FormatUint(l.Token(), 10) {
		t.Errorf("the counter is %s, the token %d", got, l.Token())
	}
	c := client(t, server.URL()+"?strategy=setnx&fence=off")
	if l := testkit.Lock(t, c, "free"); l.Token() != 0 || c.Traits().Fencing {
		t.Errorf("token %d without a counter", l.Token())
	}
}

// Redisson's RLock: field UUID:THREAD with the hold count, and "0" on the lock's channel.
func TestRedissonFormat(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	c := client(t, server.URL()+"?strategy=redisson")
	for key, channel := range map[string]string{
		"orders":   "redisson_lock__channel:{orders}",
		"{o}rders": "redisson_lock__channel:{o}rders",
	} {
		t.Run(key, func(t *testing.T) {
			message := subscribe(t, server, channel)
			l := testkit.Lock(t, c, key)
			fields := strings.Fields(do(t, server, "HGETALL", key))
			field := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}:\d+$`)
			if len(fields) != 2 || !field.MatchString(fields[0]) || fields[1] != "1" {
				t.Errorf("our hash is %q", fields)
			}
			if ttl, _ := strconv.Atoi(do(t, server, "PTTL", key)); ttl <= 0 || ttl > int(calm.Milliseconds()) {
				t.Errorf("our key expires in %d ms", ttl)
			}
			if err := l.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := message(); got != "0" {
				t.Errorf("published %q", got)
			}
			if do(t, server, "EXISTS", key) != "0" {
				t.Error("the key is still there")
			}

			// The other direction: a Java thread holds twice, and releases.
			const java = "8743c9c0-0795-4907-87fd-6c719a6b4586:1"
			do(t, server, "HSET", key, java, "2")
			do(t, server, "PEXPIRE", key, "3600000") // until then no waiter tries without a message
			got := waitingTry(t, c, key)
			do(t, server, "HINCRBY", key, java, "-1")
			if len(got) > 0 {
				t.Fatal("granted while Java holds")
			}
			do(t, server, "DEL", key)
			do(t, server, "PUBLISH", channel, "0")
			if err := testkit.Granted(t, got).Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// waitingTry starts to lock and waits until the client listens for the key.
func waitingTry(t *testing.T, c *hasp.Client, name string) <-chan *hasp.Lease {
	t.Helper()
	got := testkit.Locking(t, c, name)
	time.Sleep(200 * time.Millisecond)
	return got
}

// subscribe subscribes to a channel over a plain connection and returns a function that waits
// for one message.
func subscribe(t *testing.T, server *backends.Redis, channel string) func() string {
	t.Helper()
	conn, err := net.Dial("tcp", server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	in := bufio.NewReader(conn)
	read := func(lines int) (last string) {
		for range lines {
			s, err := in.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			last = strings.TrimSpace(s)
		}
		return last
	}
	if _, err := conn.Write([]byte("SUBSCRIBE " + channel + "\r\n")); err != nil {
		t.Fatal(err)
	}
	read(6) // *3 $9 subscribe $n channel :1
	return func() string { return read(7) }
}
