package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
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

// O1, S5: the server ends the connection. The holder hears it from the reader: nothing is renewed.
// The waiter holds.
func TestTerminatedHolder(t *testing.T) {
	t.Parallel()
	server := private(t)
	storeURL := sqlkit.With(server.URL(), "strategy=advisory")
	gone := make(chan string, 1)
	b := testkit.Open(t, storeURL)
	t.Cleanup(func() { b.Close() })
	s := testkit.Session(t, b, calm, func(id string, err error) {
		if !errors.Is(err, driver.ErrGone) {
			t.Errorf("told with %v", err)
		}
		gone <- id
	})
	r := testkit.Request("a")
	held := testkit.Held(t, s.Ticket(r))
	next := queued(t, storeURL, "a")
	watcher := client(t, storeURL)
	testkit.Until(t, "the record of the holder", func() error {
		q := testkit.Entries(t, watcher, "a")
		if n := len(q); n == 0 || q[n-1].ID != r.ID || q[n-1].Token != held.Token {
			return fmt.Errorf("listed %+v, and %s holds with token %d", q, r.ID, held.Token)
		}
		return nil
	})
	sqlkit.Postgres(t, server.URL(), "SELECT pg_terminate_backend(pid) FROM hasp_holders WHERE name = 'a'") // not the waiter, which may have a lock for a moment
	if id := testkit.Await(t, "the loss", gone); id != r.ID {
		t.Errorf("%s is lost, and %s was held", id, r.ID)
	}
	got := testkit.Granted(t, next)
	if got.Token() <= held.Token {
		t.Errorf("token %d after %d", got.Token(), held.Token)
	}
	testkit.Release(t, got)
}

// S5: the network is cut without a word. Nothing is to be heard, so the deadline tells; the
// server gives the lock to the next one only after it, when its probes are not answered.
func TestHalfOpen(t *testing.T) {
	t.Parallel()
	server := private(t)
	direct := sqlkit.With(server.URL(), "strategy=advisory")
	net, cutOff := testkit.Behind(t, direct)
	held := testkit.Lock(t, client(t, cutOff), "advisory")
	next := queued(t, direct, "advisory")
	net.Partition()
	testkit.Lost(t, held, hasp.ReasonExpired)
	select {
	case <-next:
		t.Error("granted while the server has the connection")
	default:
	}
	net.Reset() // the proxy's kernel answers the server's probes: it cannot vanish as a machine does
	testkit.Release(t, testkit.Granted(t, next))
}

// A server that restarts has lost every such lock, and says so.
func TestBoundRestart(t *testing.T) {
	t.Parallel()
	server := private(t)
	storeURL := sqlkit.With(server.URL(), "strategy=advisory")
	c := client(t, storeURL)
	held := testkit.Lock(t, c, "a")
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	testkit.Lost(t, held, hasp.ReasonDenied)
	if err := held.Release(t.Context()); !errors.Is(err, hasp.ErrLost) {
		t.Errorf("release after the loss: %v", err)
	}
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	again := testkit.Lock(t, c, "a")
	if again.Token() <= held.Token() {
		t.Errorf("token %d after %d", again.Token(), held.Token())
	}
	testkit.Release(t, again)
}

// A try that was refused leaves nothing in its client's memory.
func TestRefusedTriesAreForgotten(t *testing.T) { // not parallel: it measures this process
	storeURL := sqlkit.PostgresStore(t, "strategy=advisory")
	held, c := testkit.Lock(t, client(t, storeURL), "a"), client(t, storeURL)
	objects := func(tries int) uint64 {
		for range tries {
			if _, err := c.Mutex("a").TryLock(t.Context()); !errors.Is(err, hasp.ErrBusy) {
				t.Fatalf("%v", err)
			}
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapObjects
	}
	const tries = 2000
	if before, after := objects(100), objects(tries); after > before+tries/2 {
		t.Errorf("%d objects, and %d more after %d tries", before, after-before, tries)
	}
	testkit.Release(t, held)
}

// Who gives up waiting ends that connection, and no other. (All that were idle were closed, and the
// next locks had to connect anew.)
func TestGivingUpKeepsConnections(t *testing.T) {
	t.Parallel()
	server := private(t)
	connections := func() int { // but for those that ask this, of which the last one may linger
		return ask[int](t, server.URL(), "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND query NOT LIKE '%pg_stat_activity%'")
	}
	for _, params := range []string{"strategy=advisory", "strategy=advisory&fence=off"} {
		storeURL := sqlkit.With(server.URL(), params)
		held := testkit.Lock(t, client(t, storeURL), "a")
		b := testkit.Open(t, storeURL)
		t.Cleanup(func() { b.Close() })
		s := testkit.Session(t, b, calm, nil)
		leave := func(k driver.Ticket) {
			if err := k.Leave(t.Context()); err != nil {
				t.Errorf("%s: %v", params, err)
			}
		}
		var others []driver.Ticket
		for _, name := range []string{"b", "c", "d"} {
			others = append(others, s.Ticket(testkit.Request(name)))
			testkit.Held(t, others[len(others)-1])
		}
		for _, o := range others {
			leave(o)
		}
		before := connections()
		waiter := s.Ticket(testkit.Request("a"))
		if v, err := waiter.Enqueue(t.Context()); v.Held || err != nil {
			t.Fatalf("%s: %+v, %v", params, v, err)
		}
		leave(waiter)
		after := func() bool { return connections() < before } // the server ends it soon after
		testkit.Eventually(t, params+": the end of a connection", after)
		if n := connections(); n != before-1 {
			t.Errorf("%s: %d connections, and %d after one has waited", params, before, n)
		}
		testkit.Release(t, held)
	}
}

// A connection that waits is not in anybody's way once its caller has given up: neither the
// server's queue nor its list of connections keeps it.
func TestCancelledWaiter(t *testing.T) {
	t.Parallel()
	server := private(t)
	storeURL := sqlkit.With(server.URL(), "strategy=advisory")
	held := testkit.Lock(t, client(t, storeURL), "a")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	_, err := client(t, storeURL).Mutex("a").Lock(ctx)
	cancel()
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("cancelled: %v", err)
	}
	testkit.Eventually(t, "no statement waits at the server", func() bool {
		return ask[int](t, server.URL(), "SELECT count(*) FROM pg_locks WHERE NOT granted") == 0
	})
	testkit.Release(t, held)
}

// Locks are shared with all that call pg_advisory_lock with the same number.
func TestSharedKeys(t *testing.T) {
	t.Parallel()
	serverURL := backends.SharedPostgres(t).URL()
	other, err := pgx.Connect(t.Context(), serverURL)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(context.Background())
	for _, x := range []struct {
		rule, name, key string // key as the other program computes it
	}{
		{"integer", "-42", "-42"},
		{"integer", "9223372036854775807", "9223372036854775807"},
		// zlib.crc32(b"app") * 2053462845
		{"rails", "app", "6939591962871035475"},
		// golang-migrate: crc32 of "public\x00schema_migrations\x00app" times its salt, in 32 bits
		{"migrate", "app/public/schema_migrations", "1787120056"},
		// and of "public\x00schema_migrations\x00/app", where it was given a URL
		{"migrate", "/app/public/schema_migrations", "1726534663"},
	} {
		c := client(t, sqlkit.PostgresStore(t, "strategy=advisory", "fence=off", "key="+x.rule))
		if _, err := other.Exec(t.Context(), "SELECT pg_advisory_lock("+x.key+")"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Mutex(x.name).TryLock(testkit.Context(t)); !errors.Is(err, hasp.ErrBusy) {
			t.Errorf("%s %s: taken by another program, and: %v", x.rule, x.name, err)
		}
		if q := testkit.Entries(t, c, x.name); len(q) != 1 || !strings.HasPrefix(q[0].ID, "pid-") {
			t.Errorf("%s %s: listed %+v", x.rule, x.name, q)
		}
		if _, err := other.Exec(t.Context(), "SELECT pg_advisory_unlock("+x.key+")"); err != nil {
			t.Fatal(err)
		}
		l := testkit.Lock(t, c, x.name)
		if l.Token() != 0 {
			t.Errorf("%s %s: token %d without a fence", x.rule, x.name, l.Token())
		}
		if ask[bool](t, serverURL, "SELECT pg_try_advisory_lock("+x.key+")") {
			t.Errorf("%s %s: held, and another program got it", x.rule, x.name)
		}
		testkit.Release(t, l)
	}
	c := client(t, sqlkit.PostgresStore(t, "strategy=advisory", "fence=off", "key=integer"))
	for _, name := range []string{"orders", "007", "9223372036854775808"} {
		if _, err := c.Mutex(name).TryLock(testkit.Context(t)); !errors.Is(err, hasp.ErrUnsupported) {
			t.Errorf("%q as a number: %v", name, err)
		}
	}
}

// Behind a pool that hands connections out for a transaction, a lock that belongs to a
// connection would be held by another client's: refused when the store is opened.
func TestTransactionPoolerRefused(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	pool := backends.StartPgBouncer(t, backends.SharedPostgres(t), "transaction")
	_, err := hasp.Open(t.Context(), sqlkit.With(pool.URL(), "strategy=advisory"))
	if !errors.Is(err, hasp.ErrInvalid) || !strings.Contains(err.Error(), "for the time of a transaction") {
		t.Errorf("%v", err)
	}
	if b := testkit.Open(t, pool.URL()); b.Traits().Push {
		t.Error("strategy=table promises to push behind a transaction pooler")
	}
	session := backends.StartPgBouncer(t, backends.SharedPostgres(t), "session")
	b := testkit.Open(t, session.URL())
	defer b.Close()
	if !b.Traits().Push {
		t.Error("a session pooler passes notifications on, and no client listens")
	}
}
