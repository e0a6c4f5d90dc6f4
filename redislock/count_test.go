package redislock_test

import (
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
)

// calls returns how often the server has run commands whose name matches.
func calls(t testing.TB, server *backends.Redis, name string) int {
	t.Helper()
	info, err := server.Do("INFO", "commandstats")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, m := range regexp.MustCompile(`cmdstat_(?:`+name+`):calls=(\d+)`).FindAllStringSubmatch(info, -1) {
		c, _ := strconv.Atoi(m[1])
		n += c
	}
	return n
}

// One script call to acquire and one to release, and no message, where nobody contends.
func TestUncontendedCosts(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	c := client(t, server.URL(), hasp.WithTTL(10*time.Minute))
	cycle := func() {
		if err := lock(t, c, "a").Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	cycle() // loads the scripts
	before, messages := calls(t, server, "evalsha|eval"), calls(t, server, "publish")
	const n = 50
	for range n {
		cycle()
	}
	if got := calls(t, server, "evalsha|eval") - before; got != 2*n {
		t.Errorf("%d script calls for %d locks and releases", got, n)
	}
	if got := calls(t, server, "publish") - messages; got != 0 {
		t.Errorf("%d messages to nobody", got)
	}
}

// With any number of waiters an acquisition costs two script calls, its own and the release
// that hands over, and one message.
func TestContendedCosts(t *testing.T) {
	t.Parallel()
	for _, n := range []int{8, 64, 512} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			server := backends.StartRedis(t, backends.RedisOptions{})
			first := client(t, server.URL(), hasp.WithTTL(10*time.Minute))
			l := lock(t, first, "a")
			var clients []*hasp.Client
			for range n {
				c := client(t, server.URL()+"?dial_timeout=1m", hasp.WithTTL(10*time.Minute))
				// One after the other: a thousand connections at once are another test.
				if err := lock(t, c, "warm").Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				clients = append(clients, c)
			}
			before, messages := calls(t, server, "evalsha|eval"), calls(t, server, "publish")
			var wg sync.WaitGroup
			for _, c := range clients {
				wg.Go(func() {
					for range 2 {
						l, err := c.Mutex("a").Lock(t.Context())
						if err != nil {
							t.Error(err)
							return
						}
						if err := l.Release(t.Context()); err != nil {
							t.Error(err)
						}
					}
				})
			}
			if err := l.Release(t.Context()); err != nil {
				t.Error(err)
			}
			wg.Wait()
			scripts := float64(calls(t, server, "evalsha|eval")-before) / float64(2*n)
			published := float64(calls(t, server, "publish")-messages) / float64(2*n)
			// Those who were close to the front and waited long have asked once; renewals of
			// a minute's TTL do not fall into this time.
			if scripts > 2.2 || published > 1.05 {
				t.Errorf("%.2f script calls and %.2f messages an acquisition", scripts, published)
			}
			t.Logf("%.2f script calls and %.2f messages an acquisition", scripts, published)
		})
	}
}

// All entries of a client, waiters included, are renewed by one call for up to 350 names.
func TestRenewalCosts(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	c := client(t, server.URL())
	const names = 600
	first := lock(t, c, "n0")
	for i := 1; i < names; i++ {
		lock(t, c, fmt.Sprint("n", i))
	}
	holder := lock(t, client(t, server.URL(), hasp.WithTTL(10*time.Minute)), "w")
	waiting(t, c, "w")
	renewed(t, first) // the next one is a third of the TTL away
	began, before := time.Now(), calls(t, server, "evalsha|eval")
	renewed(t, first)
	got := calls(t, server, "evalsha|eval") - before
	// Two calls for 601 names. A machine that stood still for a third of the TTL has seen two
	// renewals, and the waiter looks for itself when its holder could have expired.
	if got < 2 || got > 2*2+2 {
		t.Errorf("%d script calls for one renewal of %d locks and a waiter", got, names)
	}
	if !holder.Held() || len(queue(t, c, "w")) != 2 {
		t.Error("the waiter was not renewed")
	}
	// All of them, by the store's own word: the one that expires first does so a whole TTL
	// after this renewal began.
	earliest := do(t, server, "EVAL", `local least = math.huge
		for i = 0, ARGV[1] - 1 do
			local one = redis.call('HGET', 'hasp:{n' .. i .. '}', 'one')
			least = math.min(least, tonumber(string.match(one, '^%S+ (%d+)')))
		end
		return string.format('%.0f', least)`, "0", strconv.Itoa(names))
	if us, _ := strconv.ParseInt(earliest, 10, 64); time.UnixMicro(us).Before(began.Add(calm)) {
		t.Errorf("a lock that expires at %s was not renewed after %s", time.UnixMicro(us), began)
	}
}
