package redislock_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// An uncontended lock costs one script call to acquire and one to release, and no message.
func TestUncontendedCosts(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	c := client(t, server.URL(), hasp.WithTTL(10*time.Minute))
	cycle := func() {
		if err := testkit.Lock(t, c, "a").Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	cycle() // loads the scripts
	messages := server.Calls(t, "publish")
	const n = 50
	// Several rounds: a session renews its waiters once when it listens, and a busy machine does so
	// late.
	for round, more := 1, true; more; round++ {
		before, dialed := server.Calls(t, "evalsha|eval"), connections(t, server)
		for range n {
			cycle()
		}
		dialed = connections(t, server) - dialed - 1 // each repeats a request, or asks for a missed message
		got := server.Calls(t, "evalsha|eval") - before
		more = got > 2*n+dialed && round < 3
		if got < 2*n || got > 2*n+dialed && !more {
			t.Errorf("%d script calls for %d locks and releases, in round %d", got, n, round)
		}
	}
	if got := server.Calls(t, "publish") - messages; got != 0 {
		t.Errorf("%d messages without a receiver", got)
	}
}

// With any number of waiters an acquisition costs two script calls, its own and the release
// that hands over, and one message.
func TestContendedCosts(t *testing.T) {
	t.Parallel()
	contendedCosts(t, 8, 64)
}

func TestContendedCostsOfMany(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	contendedCosts(t, 512)
}

func contendedCosts(t *testing.T, sizes ...int) {
	for _, n := range sizes {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			server := backends.StartRedis(t, backends.RedisOptions{})
			first := client(t, server.URL(), hasp.WithTTL(time.Hour))
			l := testkit.Lock(t, first, "a")
			var clients []*hasp.Client
			for range n {
				c := client(t, server.URL()+"?connect_timeout=1m", hasp.WithTTL(time.Hour)) // no renewal falls into this
				// One after the other: a thousand connections at once are a different test.
				if err := testkit.Lock(t, c, "warm").Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				clients = append(clients, c)
			}
			before, messages := server.Calls(t, "evalsha|eval"), server.Calls(t, "publish")
			dialed := connections(t, server)
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
			dialed = connections(t, server) - dialed - 1 // that which asks
			calls := server.Calls(t, "evalsha|eval") - before
			scripts := float64(calls) / float64(2*n)
			published := float64(server.Calls(t, "publish")-messages) / float64(2*n)
			t.Logf("%.2f script calls and %.2f messages an acquisition, %d connections made anew", scripts, published, dialed)
			// Clients near the front that waited long have asked once. On a machine where an answer
			// takes seconds a client replaces a connection, and repeats a request or asks for a
			// missed message on the new one: that is one call.
			if most := 2.2*float64(2*n) + float64(dialed); float64(calls) > most || published > 1.05 {
				t.Errorf("%d script calls and %.2f messages an acquisition; %.0f calls are allowed", calls, published, most)
			}
		})
	}
}

// connections is how many connections the server has accepted so far, including this request's.
func connections(t *testing.T, server *backends.Redis) int {
	t.Helper()
	_, rest, _ := strings.Cut(do(t, server, "INFO", "stats"), "total_connections_received:")
	text, _, _ := strings.Cut(rest, "\r")
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// All entries of a client, waiters included, are renewed by one call for up to 350 entries.
func TestRenewalCosts(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	c := client(t, server.URL())
	const names = 800
	first := testkit.Lock(t, c, "n0")
	for i := 1; i < names; i++ {
		testkit.Lock(t, c, fmt.Sprint("n", i))
	}
	holder := testkit.Lock(t, client(t, server.URL(), hasp.WithTTL(10*time.Minute)), "w")
	testkit.Queued(t, c, "w")
	renewed(t, first) // the next one is a third of the TTL away
	began, before := time.Now(), server.Calls(t, "evalsha|eval")
	renewed(t, first)
	got := server.Calls(t, "evalsha|eval") - before
	// Three calls for 801 names. On a machine that stood still for a third of the TTL there were
	// two renewals, and the waiter asks when its holder could have expired.
	if got < 3 || got > 2*3+2 {
		t.Errorf("%d script calls for one renewal of %d locks and a waiter", got, names)
	}
	if !holder.Held() || len(testkit.Entries(t, c, "w")) != 2 {
		t.Error("the waiter was not renewed")
	}
	// All of them, by the expiries in the store: the earliest is a whole TTL after this renewal
	// began.
	earliest := do(t, server, "EVAL", `local least = math.huge
		for i = 0, ARGV[1] - 1 do
			local one = redis.call('HGET', 'hasp:{n' .. i .. '}', 'one')
			least = math.min(least, tonumber(string.match(one, '^%S+ %d+ (%d+)')))
		end
		return string.format('%.0f', least)`, "0", strconv.Itoa(names))
	if us, _ := strconv.ParseInt(earliest, 10, 64); time.UnixMicro(us).Before(began.Add(calm)) {
		t.Errorf("a lock that expires at %s was not renewed after %s", time.UnixMicro(us), began)
	}
}

// A renewal overtakes the answer to the request that takes a free lock. The entry stays a single
// field: converted into the fields of a queue, its release would cost more.
func TestRenewalBeforeAnswer(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	net := testkit.Proxy(t, server.Addr)
	b := testkit.Open(t, "redis://"+net.Addr())
	defer b.Close()
	s, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: 2 * slack, Gone: func(string, error) {}})
	must(t, err)
	defer s.Close(context.WithoutCancel(t.Context()))

	request := driver.Request{Name: "warm", ID: "id", Units: driver.Whole, Capacity: driver.Whole, Since: time.Now()}
	warm := s.Ticket(request) // so that the server knows the script, and the request is one chunk
	_, err = warm.Enqueue(t.Context())
	must(t, err)
	must(t, warm.Leave(t.Context()))
	request.Name = "a"
	ticket := s.Ticket(request)
	cut := net.Lose(faultnet.Down, 1, faultnet.Contains("hasp:{a}"))
	if v, err := ticket.Enqueue(t.Context()); err == nil {
		t.Fatalf("%+v, although the answer is lost", v)
	}
	<-cut
	if _, err := s.KeepAlive(t.Context()); err != nil {
		t.Fatal(err)
	}
	fields := slices.Sorted(strings.SplitSeq(do(t, server, "HKEYS", "hasp:{a}"), "\n"))
	if !slices.Equal(fields, []string{"hasp2", "one"}) {
		t.Errorf("after the renewal the fields are %q", fields)
	}
	v, err := ticket.Enqueue(t.Context())
	if seq, _, _ := strings.Cut(do(t, server, "HGET", "hasp:{a}", "hasp2"), " "); err != nil || !v.Held || strconv.FormatUint(v.Token, 10) != seq {
		t.Errorf("%+v, %v; the store's Seq is %s", v, err, seq)
	}
	must(t, ticket.Leave(t.Context()))
}

// A listing reads many names in one round trip, and none that begins otherwise.
func TestListingCosts(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	c := client(t, server.URL(), hasp.WithTTL(time.Hour)) // no renewal falls into this
	const held = 200
	var want []string
	for i := range held {
		want = append(want, fmt.Sprintf("held/%03d", i))
		testkit.Lock(t, c, want[i])
		if err := testkit.Lock(t, c, fmt.Sprint("past/", i)).Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	list := func() (got []string) {
		for name, err := range c.Names(t.Context(), "held/") {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, name)
		}
		slices.Sort(got)
		return got
	}
	list() // loads the script
	calls, reads := server.Calls(t, "evalsha|eval"), readsOf(t, server)
	got := list()
	calls, reads = server.Calls(t, "evalsha|eval")-calls, readsOf(t, server)-reads
	if !slices.Equal(got, want) {
		t.Errorf("listed %d names, want %d: %q", len(got), len(want), got)
	}
	if calls != held || reads > held/4 {
		t.Errorf("%d names of %d were listed with %d script calls, want one for each; the server read %d times, want at most %d", held, 2*held, calls, reads, held/4)
	}
}

// readsOf is how often the server has read from any connection: a round trip takes one, or a few if
// it is long.
func readsOf(t *testing.T, server *backends.Redis) (n int) {
	t.Helper()
	for line := range strings.Lines(do(t, server, "INFO", "stats")) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "total_reads_processed:"); ok {
			n, err := strconv.Atoi(text)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("the server does not count its reads")
	return 0
}
