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
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// A session listens while something waits. The server wakes every connection that listens for each
// NOTIFY of the database, on any channel: that is the control. A client that has
// waited, and does not any more, is not woken by the hand-overs of others; and those cost no LISTEN each.
func TestOnlyWaitersAreWoken(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("how often a process was woken is read from /proc")
	}
	server := counted(t)
	for i := range 4 {
		name := fmt.Sprint("once", i)
		held := testkit.Lock(t, client(t, server.URL()), name)
		next := queued(t, server.URL(), name)
		testkit.Release(t, held)
		testkit.Release(t, testkit.Granted(t, next))
	}
	testkit.Eventually(t, "four that listen no longer", func() bool { return statements(t, server, "UNLISTEN hasp%") == 4 })
	pids := ask[[]int32](t, server.URL(), "SELECT array_agg(pid) FROM pg_stat_activity WHERE application_name = 'hasp'")

	control, err := pgx.Connect(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close(context.Background())
	if _, err := control.Exec(t.Context(), "LISTEN another"); err != nil {
		t.Fatal(err)
	}
	spied := control.PgConn().PID()

	// Another TTL: they share no connection with the others.
	clients := []*hasp.Client{client(t, server.URL(), hasp.WithTTL(ages)), client(t, server.URL(), hasp.WithTTL(ages))}
	listens := statements(t, server, "LISTEN hasp%")
	before := map[int32]int{}
	for _, pid := range pids {
		before[pid] = wakeups(t, pid)
	}
	const rounds = 30
	held := testkit.Lock(t, clients[0], "popular")
	for i := range rounds {
		next := testkit.Queued(t, clients[(i+1)%2], "popular")
		woken := wakeups(t, int32(spied))
		testkit.Release(t, held)
		testkit.Eventually(t, "the control that is woken", func() bool { return wakeups(t, int32(spied)) > woken })
		held = testkit.Granted(t, next)
	}
	// Renewals and tidying wake them, too, once in some seconds.
	for pid, n := range before {
		if got := wakeups(t, pid) - n; got >= rounds/2 {
			t.Errorf("process %d of a client that does not wait was woken %d times by %d hand-overs", pid, got, rounds)
		}
	}
	if n := statements(t, server, "LISTEN hasp%") - listens; n < 2 || n > 2+rounds/10 {
		t.Errorf("%d LISTEN of two clients in %d hand-overs", n, rounds)
	}
	testkit.Release(t, held)
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

// L2: a release between the answer "wait" and the LISTEN is not heard. The waiter asks once when the
// LISTEN stands, and so is granted at once, not when a TTL is over. The network holds the LISTEN up
// until the release has been answered.
func TestReleasedBeforeListen(t *testing.T) {
	t.Parallel()
	storeURL := sqlkit.PostgresStore(t)
	held := testkit.Lock(t, client(t, storeURL, hasp.WithTTL(ages)), "early")
	late, slow := behindLate(t, storeURL, "LISTEN hasp_s_")
	next := testkit.Locking(t, client(t, slow, hasp.WithTTL(ages)), "early")
	late.wait(testkit.Context(t), t)
	testkit.Release(t, held)
	late.Deliver()
	testkit.Release(t, testkit.Granted(t, next))
}

// L7: the connection ends on which a session listens for several waiters; the next one listens again, and
// what was notified in between is asked for.
func TestListenerIsCut(t *testing.T) {
	t.Parallel()
	server := private(t)
	var held []*hasp.Lease
	var next []<-chan *hasp.Lease
	holder := client(t, server.URL(), hasp.WithTTL(ages))
	waiter := client(t, server.URL(), hasp.WithTTL(ages))
	for i := range 4 {
		name := fmt.Sprint("cut", i)
		held = append(held, testkit.Lock(t, holder, name))
		next = append(next, testkit.Queued(t, waiter, name))
	}
	testkit.Eventually(t, "a connection that listens", func() bool { return listening(t, server.URL()) == 1 })
	for range 2 {
		sqlkit.Postgres(t, server.URL(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
		testkit.Release(t, held[0]) // its notification may be lost
		testkit.Release(t, testkit.Granted(t, next[0]))
		testkit.Eventually(t, "a connection that listens again", func() bool { return listening(t, server.URL()) == 1 })
		testkit.Release(t, held[1]) // it is notified to the new connection
		testkit.Release(t, testkit.Granted(t, next[1]))
		held, next = held[2:], next[2:]
	}
}

// The clients of a process listen on one connection: however many wait for a name, a hand-over wakes one
// process of the server. If that breaks, or its client is closed, the others go on by another.
func TestOneConnectionListens(t *testing.T) {
	t.Parallel()
	server := private(t)
	held := testkit.Lock(t, client(t, server.URL(), hasp.WithTTL(ages)), "shared")
	const waiters = 8
	var next []<-chan *hasp.Lease
	first := client(t, server.URL(), hasp.WithTTL(ages))
	c := first
	for range waiters {
		next = append(next, testkit.Queued(t, c, "shared"))
		testkit.Eventually(t, "a LISTEN", func() bool { return listening(t, server.URL()) == 1 })
		c = client(t, server.URL(), hasp.WithTTL(ages))
	}
	pass := func() {
		testkit.Release(t, held)
		held, next = testkit.Granted(t, next[0]), next[1:]
	}
	pass() // first holds, and listens for the others
	pass()
	sqlkit.Postgres(t, server.URL(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
	pass()
	testkit.Eventually(t, "a connection that listens again", func() bool { return listening(t, server.URL()) == 1 })
	pass()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	pass()
	testkit.Eventually(t, "another connection that listens", func() bool { return listening(t, server.URL()) == 1 })
	for len(next) > 0 {
		pass()
	}
	testkit.Release(t, held)
}

// listening counts the connections whose last statement was LISTEN: those of clients that renew in ages.
func listening(t *testing.T, serverURL string) int {
	return ask[int](t, serverURL, "SELECT count(*)::int FROM pg_stat_activity WHERE application_name = 'hasp' AND query LIKE 'LISTEN%'")
}

// ages is a TTL that no test outlasts: what needs one to pass does not happen.
const ages = 10 * time.Minute
