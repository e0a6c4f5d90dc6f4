package pglock_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// ages is a TTL that no test outlasts: what needs one to pass does not happen.
const ages = 10 * time.Minute

// apart is a URL whose clients share no channel with those of another: as if they were in another
// process.
func apart(storeURL, process string) string {
	return sqlkit.With(storeURL, "application_name=hasp-"+process)
}

// listening is true of the connections whose last statement was one of those that begin to listen:
// of clients that renew in ages.
const listening = "application_name LIKE 'hasp%' AND (query LIKE 'LISTEN hasp%' OR query LIKE 'SELECT g FROM%granted(%')"

// A process listens while something waits. The server wakes every connection that listens for each
// NOTIFY of the database, on any channel: that is the control. A process that holds a lock for
// which nothing waits, one that has waited and does not any more, and an application's that listens
// in another database, are not woken by the hand-overs of others; and those cost no LISTEN each.
func TestOnlyWaitersAreWoken(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("how often a process was woken is read from /proc")
	}
	server := counted(t)
	for i := range 4 {
		name, process := fmt.Sprint("once", i), fmt.Sprint("idle", i)
		held := testkit.Lock(t, client(t, server.URL(), hasp.WithTTL(ages)), name)
		next := queued(t, apart(server.URL(), process), name, hasp.WithTTL(ages))
		testkit.Release(t, held)
		held = testkit.Granted(t, next)
		if i%2 == 0 {
			testkit.Release(t, held)
		}
	}
	testkit.Eventually(t, "four that listen no longer", func() bool { return statements(t, server, "UNLISTEN hasp%") == 4 })
	pids := ask[[]int32](t, server.URL(), "SELECT array_agg(pid) FROM pg_stat_activity WHERE application_name LIKE 'hasp%'")

	spied := listener(t, server.URL())
	pids = append(pids, listener(t, replaceDatabase(t, server.URL(), "template1")))

	clients := []*hasp.Client{
		client(t, apart(server.URL(), "one"), hasp.WithTTL(ages)), client(t, apart(server.URL(), "two"), hasp.WithTTL(ages)),
	}
	listens := statements(t, server, "LISTEN hasp%")
	before := map[int32]int{}
	for _, pid := range pids {
		before[pid] = wakeups(t, pid)
	}
	const rounds = 30
	held := testkit.Lock(t, clients[0], "popular")
	var began []time.Time
	anew := int64(0) // a process that has not waited for 5 s listens no longer
	for i := range rounds {
		began = append(began, time.Now())
		next := testkit.Queued(t, clients[(i+1)%2], "popular")
		woken := wakeups(t, spied)
		testkit.Release(t, held)
		testkit.Eventually(t, "the control that is woken", func() bool { return wakeups(t, spied) > woken })
		held = testkit.Granted(t, next)
		if time.Since(began[max(i-2, 0)]) >= 5*time.Second {
			anew++
		}
	}
	// Tidying wakes them, too, once in a minute.
	for pid, n := range before {
		if got := wakeups(t, pid) - n; got >= rounds/2 {
			t.Errorf("process %d of a client that does not wait, or of another database, was woken %d times by %d hand-overs", pid, got, rounds)
		}
	}
	if n := statements(t, server, "LISTEN hasp%") - listens; n < 2 || n > 2+rounds/10+anew {
		t.Errorf("%d LISTEN of two processes in %d hand-overs", n, rounds)
	}
	testkit.Release(t, held)
}

// listener is a process of the server that listens for an application.
func listener(t *testing.T, databaseURL string) (pid int32) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), databaseURL)
	if err == nil {
		t.Cleanup(func() { conn.Close(context.Background()) })
		_, err = conn.Exec(t.Context(), "LISTEN another")
	}
	if err != nil {
		t.Fatal(err)
	}
	return int32(conn.PgConn().PID())
}

// wakeups is how often a process of this machine has begun to run after it waited.
func wakeups(t testing.TB, pid int32) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\nvoluntary_ctxt_switches:\t")
	number, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.Atoi(number)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// L2, L5: a release between the answer "wait" and the LISTEN is not heard. It is read when the
// LISTEN is in force: the waiter is granted at once, not when a TTL is over, and no waiter asks,
// however long that takes. The network holds the LISTEN up until the release has been answered.
func TestReleasedBeforeListen(t *testing.T) {
	t.Parallel()
	server := counted(t)
	holder := client(t, server.URL(), hasp.WithTTL(ages))
	early, later := testkit.Lock(t, holder, "early"), testkit.Lock(t, holder, "later")
	network, slow := behindLate(t, server.URL(), "LISTEN hasp_l_")
	before := asked(t, server)
	first := queued(t, slow, "early", hasp.WithTTL(ages))
	network.wait(testkit.Context(t), t)
	second := queued(t, slow, "early", hasp.WithTTL(ages))
	other := queued(t, slow, "later", hasp.WithTTL(ages))
	testkit.Release(t, early)
	network.Deliver()
	testkit.Release(t, testkit.Granted(t, first))
	testkit.Release(t, testkit.Granted(t, second))
	testkit.Release(t, later)
	testkit.Release(t, testkit.Granted(t, other))
	if n := asked(t, server) - before; n != 3 {
		t.Errorf("3 waiters sent %d requests", n)
	}
}

// asked is how often clients have entered, or asked for an entry.
func asked(t *testing.T, server *backends.Postgres) int64 {
	t.Helper()
	return statements(t, server, "%hasp\\_enter%")
}

// S5: a LISTEN that is not answered does not hold the renewals behind it up for longer than a lease
// lasts: the connection is given up for another.
func TestListenHoldsNoRenewalUp(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	storeURL := sqlkit.PostgresStore(t)
	late, slow := behindLate(t, storeURL, "LISTEN hasp_l_")
	c := client(t, slow)
	kept := testkit.Lock(t, c, "listen/kept")
	holder := client(t, storeURL, hasp.WithTTL(ages))
	held, other := testkit.Lock(t, holder, "listen/stuck"), testkit.Lock(t, holder, "listen/other")
	next := testkit.Locking(t, c, "listen/stuck")
	late.wait(testkit.Context(t), t)
	hears := queued(t, slow, "listen/other", hasp.WithTTL(ages)) // which does not ask meanwhile
	lasts(t, kept, calm)
	testkit.Release(t, other) // the next connection's LISTEN hears it
	testkit.Release(t, testkit.Granted(t, hears))
	testkit.Release(t, held)
	testkit.Release(t, testkit.Granted(t, next))
	testkit.Release(t, kept)
}

// L2: a waiter asks within its TTL, also if those ahead have a longer one: its notification may be
// lost on the connection of a session that will not find that out for as long.
func TestAsksWithinItsTTL(t *testing.T) {
	t.Parallel()
	storeURL := sqlkit.PostgresStore(t)
	holder, _ := opened(t, storeURL, ages)
	enqueue(t, holder.Ticket(mutex("ttl/long")))
	waiter, _ := opened(t, storeURL, calm)
	if v, err := waiter.Ticket(mutex("ttl/long")).Enqueue(testkit.Context(t)); err != nil || v.Held || v.Retry <= 0 || v.Retry > calm {
		t.Errorf("%+v, %v; it is to ask within %s", v, err, calm)
	}
}

// The clients of a process listen on one connection: however many wait for a name, a hand-over
// wakes one process of the server. When that connection breaks, or its client is closed, another
// client's takes its place, or the next one of the same; what was notified in between is read; and
// no waiter asks.
func TestOneConnectionListens(t *testing.T) {
	t.Parallel()
	server := counted(t)
	holder := client(t, apart(server.URL(), "holder"), hasp.WithTTL(ages))
	held := testkit.Lock(t, holder, "shared")
	const waiters = 8
	before := asked(t, server)
	var clients []*hasp.Client
	var next []<-chan *hasp.Lease
	for i := range waiters {
		clients = append(clients, client(t, server.URL(), hasp.WithTTL(ages)))
		next = append(next, testkit.Queued(t, clients[i], "shared"))
	}
	listen := func(n int) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprint(n, " connections that listen"), func() bool {
			return ask[int](t, server.URL(), "SELECT count(*)::int FROM pg_stat_activity WHERE "+listening) == n
		})
	}
	listen(1) // that of the first client
	for i := range waiters {
		if i%2 == 1 || i == waiters-1 { // its notification may be lost, the next is not
			sqlkit.Postgres(t, server.URL(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE "+listening)
		}
		testkit.Release(t, held)
		held = testkit.Granted(t, next[i])
		if i > 0 {
			if err := clients[i-1].Close(); err != nil {
				t.Error(err)
			}
		}
		if i < waiters-1 {
			listen(1)
		}
	}
	testkit.Release(t, held)
	if n := asked(t, server) - before; n != waiters {
		t.Errorf("%d waiters sent %d requests", waiters, n)
	}
	listen(0)
}

// An entry holds if it fits beside all that is ahead of it, and then only is read as granted; else
// as there.
func TestGrantedIsRead(t *testing.T) {
	t.Parallel()
	server := private(t)
	client(t, server.URL()).Mutex("tables").Lock(testkit.Context(t))
	sqlkit.Postgres(t, server.URL(), `INSERT INTO hasp_entries (name, seq, session, id, units, capacity, owner, since, value) VALUES
		('a', 1, 's', 'holds', 2, 3, '', 0, ''), ('a', 2, 's', 'fits', 1, 3, '', 0, ''), ('a', 3, 's', 'waits', 1, 3, '', 0, ''),
		('b', 1, 's', 'first', 1, 3, '', 0, ''), ('b', 4, 's', 'large', 3, 3, '', 0, ''), ('b', 5, 's', 'behind', 1, 3, '', 0, ''),
		('c', 6, 's', 'other', 1, 1, '', 0, '')`)
	got := ask[string](t, server.URL(), "SELECT string_agg(g, ', ' ORDER BY g) FROM hasp_granted('{a,b,d}', '{fits,waits,first,large,behind,other}') g")
	if want := "s behind 0, s first 1, s fits 2, s large 0, s waits 0"; got != want {
		t.Errorf("granted: %s, want %s", got, want)
	}
}

// A waiter whose entry is gone when the LISTEN is made anew asks, and queues again: not when a TTL
// is over.
func TestMissingAsk(t *testing.T) {
	t.Parallel()
	server := private(t)
	held := testkit.Lock(t, client(t, server.URL(), hasp.WithTTL(ages)), "gone")
	kept := queued(t, apart(server.URL(), "waiter"), "gone", hasp.WithTTL(ages))
	gone := queued(t, apart(server.URL(), "waiter"), "gone", hasp.WithTTL(ages))
	sqlkit.Postgres(t, server.URL(), "DELETE FROM hasp_entries WHERE seq = (SELECT max(seq) FROM hasp_entries)")
	sqlkit.Postgres(t, server.URL(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE "+listening)
	testkit.Eventually(t, "the waiter again", func() bool { return ask[int](t, server.URL(), "SELECT count(*)::int FROM hasp_entries") == 3 })
	for _, next := range []<-chan *hasp.Lease{kept, gone} {
		testkit.Release(t, held)
		held = testkit.Granted(t, next)
	}
	testkit.Release(t, held)
}
