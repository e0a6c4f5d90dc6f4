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
	server := backends.StartRedis(t, backends.RedisOptions{})
	c := client(t, server.URL(), hasp.WithTTL(hasp.DefaultTTL))
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
	for _, n := range []int{8, 64, 512} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			if n > 64 && testing.Short() {
				t.Skip("512 clients are many connections")
			}
			server := backends.StartRedis(t, backends.RedisOptions{})
			first := client(t, server.URL(), hasp.WithTTL(hasp.DefaultTTL*6))
			l := lock(t, first, "a")
			var clients []*hasp.Client
			for range n {
				clients = append(clients, client(t, server.URL(), hasp.WithTTL(hasp.DefaultTTL*6)))
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

// All entries of a client, waiters included, are renewed by one call for up to 256 names.
func TestRenewalCosts(t *testing.T) {
	server := backends.StartRedis(t, backends.RedisOptions{})
	c := client(t, server.URL(), hasp.WithTTL(T))
	const names = 600
	for i := range names {
		lock(t, c, fmt.Sprint("n", i))
	}
	held := lock(t, client(t, server.URL(), hasp.WithTTL(hasp.DefaultTTL*6)), "w")
	waiting(t, c, "w")
	before := calls(t, server, "evalsha|eval")
	time.Sleep(2 * T)
	got := calls(t, server, "evalsha|eval") - before
	// Six or seven renewals in two TTLs, of three calls each, and the look of the waiter.
	if got < 3*5 || got > 3*8+4 {
		t.Errorf("%d script calls in two TTLs for %d locks and a waiter", got, names)
	}
	if !held.Held() || len(queue(t, c, "w")) != 2 {
		t.Error("the waiter was not renewed")
	}
	for i := range names {
		if q := queue(t, c, fmt.Sprint("n", i)); len(q) != 1 {
			t.Fatalf("lock %d was not renewed", i)
		}
	}
}
