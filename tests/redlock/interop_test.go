package redlock_test

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredislib "github.com/redis/go-redis/v9"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

func newRedsync(tb testing.TB, nodes []*backends.Redis) *redsync.Redsync {
	var pools []redis.Pool
	for _, n := range nodes {
		c := goredislib.NewClient(&goredislib.Options{Addr: n.Addr, MaxRetries: -1})
		tb.Cleanup(func() { c.Close() })
		pools = append(pools, goredis.NewPool(c))
	}
	return redsync.New(pools...)
}

// A lock that redsync holds keeps us out, named by its random value, until redsync releases it,
// which it does not announce; our lock keeps redsync out; neither can release the other's.
func TestRedsyncExcludes(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	nodes := backends.SharedRedisNodes(t)
	c := client(t, urlOf(nodes))
	const name = "redsync excludes"
	theirs := newRedsync(t, nodes).NewMutex(name, redsync.WithExpiry(time.Minute), redsync.WithTries(1))
	if err := theirs.LockContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Mutex(name).TryLock(t.Context()); !errors.Is(err, hasp.ErrBusy) || !strings.Contains(err.Error(), theirs.Value()) {
		t.Errorf("try while redsync holds: %v", err)
	}
	got := waiting(t, urlOf(nodes), name)
	time.Sleep(100 * time.Millisecond)
	if len(got) > 0 {
		t.Fatal("granted while redsync holds")
	}
	if ok, err := theirs.UnlockContext(t.Context()); !ok || err != nil {
		t.Fatalf("redsync's unlock: %t, %v", ok, err)
	}
	l := testkit.Granted(t, got)
	if err := theirs.LockContext(t.Context()); err == nil {
		t.Error("redsync locked what we hold")
	}
	if ok, _ := theirs.UnlockContext(t.Context()); ok {
		t.Error("redsync unlocked what we hold")
	}
	outlives(t, l)
	if !l.Held() || len(at(t, nodes, name, l.ID())) < 3 {
		t.Errorf("held: %t, at %v", l.Held(), at(t, nodes, name, l.ID()))
	}
	testkit.Release(t, l)
	if err := theirs.LockContext(t.Context()); err != nil {
		t.Errorf("redsync after our release: %v", err)
	}
	if ok, err := theirs.UnlockContext(t.Context()); !ok {
		t.Error(err)
	}
}

// Both contend for one name, and a counter that is read and written in two steps is exact.
// The control is the same without locks: updates are lost, so that the counter can tell.
func TestRedsyncCounter(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	nodes := backends.SharedRedisNodes(t)
	const each, turns = 3, 15
	for _, locked := range []bool{true, false} {
		value := 0
		var mu sync.Mutex // makes each step atomic, not the two together
		step := func() {
			mu.Lock()
			v := value
			mu.Unlock()
			time.Sleep(500 * time.Microsecond)
			mu.Lock()
			value = v + 1
			mu.Unlock()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		contend := func(lock func() error, unlock func() error) {
			wg.Go(func() {
				for range turns {
					if locked {
						if err := lock(); err != nil {
							t.Errorf("lock: %v", err)
							return
						}
					}
					step()
					if locked {
						if err := unlock(); err != nil {
							t.Errorf("unlock: %v", err)
							return
						}
					}
				}
			})
		}
		for range each {
			c := client(t, urlOf(nodes), hasp.WithTTL(10*time.Second))
			var l *hasp.Lease
			contend(func() (err error) { l, err = c.Mutex("redsync counter").Lock(ctx); return err },
				func() error { return l.Release(ctx) })
			m := newRedsync(t, nodes).NewMutex("redsync counter", redsync.WithExpiry(10*time.Second), redsync.WithTries(1<<20),
				redsync.WithRetryDelay(20*time.Millisecond))
			contend(func() error { return m.LockContext(ctx) }, func() error { _, err := m.UnlockContext(ctx); return err })
		}
		wg.Wait()
		if exact := value == 2*each*turns; exact != locked {
			t.Errorf("locked: %t, counted %d of %d", locked, value, 2*each*turns)
		}
	}
}

// The key is the lock's name, a string with an expiry, and nothing else is left anywhere
// when all have gone, except the mark of the quarantine.
func TestFormat(t *testing.T) {
	t.Parallel()
	nodes := backends.StartRedisNodes(t, 3, backends.RedisOptions{})
	c := client(t, urlOf(nodes), hasp.WithTTL(20*time.Second))
	term, err := c.Election("orders/42").Campaign(t.Context(), []byte("at b:80"))
	if err != nil {
		t.Fatal(err)
	}
	pattern := regexp.MustCompile(`^` + term.ID() + ` \d{16}\.[0-9a-z]+ (\d+):(\S+) \{.*\}$`)
	check := func(version, data string) {
		t.Helper()
		for _, n := range nodes {
			testkit.Eventually(t, "the value", func() bool {
				m := pattern.FindStringSubmatch(do(t, n, "GET", "orders/42"))
				return m != nil && m[1] == version && m[2] == data
			})
			if ttl, _ := strconv.Atoi(do(t, n, "PTTL", "orders/42")); ttl <= 0 || ttl > 20000 {
				t.Errorf("the key expires in %d ms", ttl)
			}
		}
	}
	check("1", "YXQgYjo4MA")
	version := 1 // each attempt is a new one
	testkit.Until(t, "a majority has the value", func() error {
		version++
		return term.Publish(t.Context(), []byte("at c:80"))
	})
	check(strconv.Itoa(version), "YXQgYzo4MA")
	got := waiting(t, urlOf(nodes), "orders/42")
	if err := term.Release(t.Context()); err != nil {
		t.Error(err)
	}
	testkit.Release(t, testkit.Granted(t, got))
	for _, n := range nodes {
		testkit.Eventually(t, "no key is left", func() bool {
			left := strings.Fields(do(t, n, "KEYS", "*"))
			slices.Sort(left)
			return slices.Equal(left, []string{"hasp:lock:mark", "hasp:new"})
		})
	}
}

// A key that is no string is refused if it keeps a majority from us, and left alone.
func TestForeignKey(t *testing.T) {
	t.Parallel()
	nodes := backends.StartRedisNodes(t, 3, backends.RedisOptions{})
	c := client(t, urlOf(nodes))
	do(t, nodes[0], "RPUSH", "a", "x")
	testkit.Release(t, testkit.Lock(t, c, "a"))
	do(t, nodes[1], "RPUSH", "a", "x")
	mismatch := func(text string, lock func(context.Context) (*hasp.Lease, error)) {
		t.Helper()
		var err error
		for range 5 { // the client does not wait long for the answer that says what is there
			began := time.Now()
			if _, err = lock(t.Context()); !errors.Is(err, hasp.ErrMismatch) || time.Since(began) < 500*time.Millisecond {
				break
			}
		}
		if !errors.Is(err, hasp.ErrMismatch) || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want a mismatch with %q", err, text)
		}
	}
	mismatch("a list", c.Mutex("a").Lock)
	for _, n := range nodes {
		do(t, n, "HSET", "java", "8743c9c0-0795-4907-87fd-6c719a6b4586:1", "1")
	}
	mismatch("Redisson", c.Mutex("java").TryLock)
	for _, n := range nodes[:2] {
		if got := do(t, n, "LRANGE", "a", "0", "-1"); got != "x" {
			t.Errorf("the list has become %q", got)
		}
	}
	if _, err := c.Mutex("hasp:lock:x").Lock(t.Context()); !errors.Is(err, hasp.ErrUnsupported) {
		t.Errorf("a name that companions have: %v", err)
	}
}

// Counted at the servers: one request to each to acquire, one to release, and one for a
// renewal, however many locks are held.
func TestCosts(t *testing.T) {
	t.Parallel()
	nodes := backends.StartRedisNodes(t, 5, backends.RedisOptions{})
	const ttl = 12 * time.Second // renewals come every four seconds
	c := client(t, urlOf(nodes), hasp.WithTTL(ttl))
	testkit.Release(t, testkit.Lock(t, c, "warm"))
	settled := func() (n int) {
		testkit.Eventually(t, "the servers are at rest", func() bool {
			before := n
			n = calls(t, nodes, "evalsha|eval")
			return n == before
		})
		return n
	}
	const turns = 30
	// A busy machine delays answers beyond the time-out for a server, and an attempt is made again:
	// the least of several rounds counts.
	for round, n, most := 1, 1, 0; n > most && !t.Failed(); round++ {
		before, begun := settled(), time.Now()
		for range turns {
			testkit.Release(t, testkit.Lock(t, c, "a"))
		}
		// At most: a server that has not yet received the last release refuses, and is then not
		// asked to give anything back. And the renewals that there were meanwhile.
		n = settled() - before
		most = 10*turns + 5*(1+int(3*time.Since(begun)/ttl))
		if n < 6*turns || n > most && round == 10 {
			t.Errorf("%d requests for %d locks and releases on five servers, in round %d", n, turns, round)
		}
	}
	for i := range 200 {
		testkit.Lock(t, c, "n"+strconv.Itoa(i))
	}
	for i := range 200 { // a renewal repairs what a busy server has missed, by a request for each
		testkit.Eventually(t, "the locks on all servers", everywhere(t, nodes, "n"+strconv.Itoa(i)))
	}
	before, begun := settled(), time.Now()
	time.Sleep(ttl)
	if n := settled() - before; n < 5*2 || n > 5*(2+int(3*time.Since(begun)/ttl)) {
		t.Errorf("%d requests in %s for 200 locks on five servers", n, time.Since(begun))
	}
}

// One waiter is woken by a release, and the cost of a turn does not grow with the waiters.
func TestContendedCosts(t *testing.T) {
	t.Parallel()
	for _, n := range []int{4, 24} {
		nodes := backends.StartRedisNodes(t, 5, backends.RedisOptions{})
		l := testkit.Lock(t, client(t, urlOf(nodes), hasp.WithTTL(time.Hour)), "a")
		var all []<-chan *hasp.Lease
		for range n {
			all = append(all, waiting(t, urlOf(nodes), "a", hasp.WithTTL(time.Hour)))
		}
		before := calls(t, nodes, "evalsha|eval")
		var wg sync.WaitGroup
		for _, got := range all {
			wg.Go(func() {
				if l := <-got; l == nil {
					t.Error("a waiter was not served")
				} else if err := l.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		testkit.Release(t, l)
		wg.Wait()
		// Ten are needed: to acquire and to release. The rest is for waiters who look whether
		// the one ahead of them has died.
		turn := float64(calls(t, nodes, "evalsha|eval")-before) / float64(n+1)
		t.Logf("%.1f requests a turn with %d waiting", turn, n)
		if turn > 20 {
			t.Errorf("%.1f requests a turn with %d waiting", turn, n)
		}
	}
}
