package pglock_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// counted is a server that counts statements, and what it has counted.
func counted(t testing.TB) *backends.Postgres {
	t.Helper()
	server := private(t, "shared_preload_libraries = 'pg_stat_statements'", "pg_stat_statements.max = 10000", "track_functions = pl")
	sqlkit.Postgres(t, server.URL(), "CREATE EXTENSION pg_stat_statements")
	return server
}

// statements is how often clients have run statements like this one. What functions run
// inside is not counted (pg_stat_statements.track = top): it costs no round trip.
func statements(t testing.TB, server *backends.Postgres, like string) int64 {
	t.Helper()
	return ask[int64](t, server.URL(), "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements WHERE query LIKE $1", like)
}

// calls waits until a procedure was called so often by CALL, which pg_stat_statements counts at
// its first execution only, where it is prepared. The server's processes tell of it when they
// have been idle for some seconds.
func calls(t testing.TB, server *backends.Postgres, procedure string, least, most int64) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprint(least, " to ", most, " calls of ", procedure), func() bool {
		got := ask[int64](t, server.URL(), "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_user_functions WHERE funcname = $1", procedure)
		return least <= got && got <= most
	})
}

// all are those of hasp, but not the few that a client begins with and the looking around
// of pools.
const all = "%hasp\\_%"

// One statement to acquire and one to release without contention, for every strategy
// that draws its tokens in the statement that locks; and no commit notifies.
func TestUncontendedCosts(t *testing.T) {
	t.Parallel()
	server := counted(t)
	for _, x := range []struct {
		params, enter, leave string
	}{
		{"strategy=table", "%hasp\\_enter%", "%hasp\\_leave%"},
		{"strategy=advisory", "%hasp\\_queues%", "%pg\\_advisory\\_unlock($1%"},
		{"strategy=advisory&fence=off", "%pg\\_try\\_advisory\\_lock%", "%pg\\_advisory\\_unlock($1%"},
	} {
		// In ages nothing is renewed: a request that meets a renewal is sent twice.
		c := client(t, sqlkit.With(server.URL(), x.params), hasp.WithTTL(ages))
		testkit.Release(t, testkit.Lock(t, c, "warm"))
		before, enter, leave := statements(t, server, "%"), statements(t, server, x.enter), statements(t, server, x.leave)
		const n = 50
		for i := range n {
			name := "warm"
			// One that a busy machine has kept for 20 ms is recorded, and so are all after it of
			// the same name.
			if strings.HasPrefix(x.params, "strategy=advisory") {
				name = fmt.Sprint("warm-", i)
			}
			testkit.Release(t, testkit.Lock(t, c, name))
		}
		e, l := statements(t, server, x.enter)-enter, statements(t, server, x.leave)-leave
		rest := statements(t, server, "%") - before - 2*n
		if e != n || l < n || l > n+2 {
			t.Errorf("%s: %d statements to acquire and %d to release %d times", x.params, e, l, n)
		}
		// Those are the looking of this test itself.
		if rest > 20 {
			t.Errorf("%s: %d other statements", x.params, rest)
		}
	}
}

// With any number of waiters a hand-over costs two statements, the acquisition's own and
// the release that grants to the next and notifies it; and connections stay as many.
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
			server := counted(t)
			u, err := url.Parse(server.URL())
			if err != nil {
				t.Fatal(err)
			}
			b, err := driver.Lookup("postgres")(t.Context(), u)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { b.Close() })
			// Below the core, whose local queue would let one of a client's waiters into the queue.
			s, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: 10 * time.Minute, Gone: func(string, error) {}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close(context.Background()) })
			// Without what comes with time, and so on a machine that takes long.
			count := func() int64 {
				return statements(t, server, all) - statements(t, server, "%hasp\\_renew%") - statements(t, server, "UNLISTEN hasp%") - statements(t, server, "%hasp\\_tidy%")
			}
			before := count()
			tickets := make([]driver.Ticket, n+1)
			for i := range tickets {
				tickets[i] = s.Ticket(driver.Request{
					Name: "contended", ID: rand.Text(), Units: driver.Whole, Capacity: driver.Whole, Since: time.Now(),
				})
				if v, err := tickets[i].Enqueue(testkit.Context(t)); err != nil || v.Held != (i == 0) {
					t.Fatalf("entry %d: %+v, %v", i, v, err)
				}
			}
			for i, ticket := range tickets {
				for held := i == 0; !held; {
					v, err := ticket.Wait(testkit.Context(t))
					if err != nil {
						t.Fatalf("waiter %d of %d was not told: %v", i, n, err)
					}
					held = v.Held
				}
				if err := ticket.Leave(testkit.Context(t)); err != nil {
					t.Fatal(err)
				}
			}
			got := count() - before
			if want := int64(2 * len(tickets)); got < want || got > want+2 {
				t.Errorf("%d statements for %d acquisitions and releases", got, len(tickets))
			}
			connections := ask[int](t, server.URL(), "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'hasp'")
			if connections > 3 { // the session's own, and what one request at a time needs of the pool
				t.Errorf("%d connections for %d waiters", connections, n)
			}
			t.Logf("%d statements and %d connections for %d hand-overs", got, connections, n)
		})
	}
}

// An advisory lock that is taken costs what a free one does: the statement that waits says so
// by a notice.
func TestContendedAdvisoryCosts(t *testing.T) {
	t.Parallel()
	server := counted(t)
	const clients, rounds = 8, 8
	start := make(chan struct{})
	var wg sync.WaitGroup
	var waited atomic.Int64
	for range clients {
		c := client(t, sqlkit.With(server.URL(), "strategy=advisory"), hasp.WithObserver(testkit.Observer(func(e hasp.Event) {
			if e.Kind == hasp.EventWaiting {
				waited.Add(1)
			}
		})))
		wg.Go(func() {
			<-start
			for range rounds {
				if err := c.Do(testkit.Context(t), "contended", func(context.Context) error { time.Sleep(20 * time.Millisecond); return nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	close(start)
	wg.Wait()
	if waited.Load() < rounds {
		t.Errorf("%d of %d acquisitions waited: this has tested little", waited.Load(), clients*rounds)
	}
	const n = clients * rounds
	if got := statements(t, server, "SELECT%pg\\_advisory\\_unlock($1%"); got != n {
		t.Errorf("%d statements to release, want %d", got, n)
	}
	// Each client finds out that the name is taken, and tries whether it is free again when it was
	// so eight times.
	tries := statements(t, server, "SELECT%hasp\\_queues%")
	calls(t, server, "hasp_obtain", n-tries, n-tries+clients+n/8)
}

// A look at the names does not wait for the record of an advisory lock that another program has had
// for some time.
func TestForeignLockIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	server := counted(t)
	c := client(t, sqlkit.With(server.URL(), "strategy=advisory"))
	testkit.Release(t, testkit.Lock(t, c, "a"))
	other, err := pgx.Connect(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(context.Background())
	if _, err := other.Exec(t.Context(), "SELECT pg_advisory_lock(4711)"); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "it has been idle for a second", func() bool {
		return ask[bool](t, server.URL(), "SELECT state_change < clock_timestamp() - interval '1 second' FROM pg_stat_activity WHERE pid = $1", int(other.PgConn().PID()))
	})
	const looks = "SELECT EXISTS (SELECT FROM pg_locks%"
	before := statements(t, server, looks)
	for name, err := range c.Names(t.Context(), "") {
		t.Errorf("%q, %v", name, err)
	}
	if n := statements(t, server, looks) - before; n != 1 {
		t.Errorf("%d looks for locks without a name, want 1", n)
	}
}

// A renewal is one statement, however many locks are held, and nothing is asked in between.
func TestRenewalCosts(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	server := counted(t)
	const ttl = 3 * T // a busy machine takes its time for so many locks
	c := client(t, server.URL(), hasp.WithTTL(ttl))
	const names = 300
	var held []*hasp.Lease
	for i := range names {
		held = append(held, testkit.Lock(t, c, fmt.Sprint("n", i)))
	}
	time.Sleep(ttl / 2) // a renewal that met the last of these requests looks twice
	before, renewals := statements(t, server, all), statements(t, server, "%hasp\\_renew%")
	time.Sleep(2 * ttl)
	got, renewed := statements(t, server, all)-before, statements(t, server, "%hasp\\_renew%")-renewals
	if renewed < 2 || renewed > 8 || got > renewed+2 { // six in two TTLs; cleaning up, once a minute, may fall into them
		t.Errorf("%d statements, %d of them renewals, in two TTLs with %d locks", got, renewed, names)
	}
	for _, l := range held {
		if !l.Held() {
			t.Fatalf("lost: %v", l.Err())
		}
	}
}
