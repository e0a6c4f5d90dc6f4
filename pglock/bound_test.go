package pglock_test

import (
	"context"
	"errors"
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
	"github.com/hasplock/hasp/pglock"
)

// O1, S5: the server ends the connection. The holder hears it at once from the reader, not
// at its next renewal, which is seconds away; the waiter holds.
func TestTerminatedHolder(t *testing.T) {
	t.Parallel()
	server := private(t)
	// 50 ms are promised, and a renewal comes every four seconds: who hears it by that hears it
	// late each time, and a busy machine is late now and then.
	took := terminated(t, server)
	for tries := 1; took > 3*time.Second && tries < 4; tries++ {
		t.Logf("told after %s", took)
		took = terminated(t, server)
	}
	if took > 3*time.Second {
		t.Errorf("told after %s, and not sooner in any of four times", took)
	}
}

// terminated has the server end a holder's connection and returns after how long the holder was
// told.
func terminated(t *testing.T, server *backends.Postgres) time.Duration {
	t.Helper()
	storeURL := sqlkit.With(server.URL(), "strategy=advisory")
	held := testkit.Lock(t, client(t, storeURL), "a")
	next := queued(t, storeURL, "a")
	q := listed(t, client(t, storeURL), held)
	if holder := q[len(q)-1]; holder.ID != held.ID() || holder.Token != held.Token() {
		t.Errorf("listed %+v, and %s holds with token %d", holder, held.ID(), held.Token())
	}
	began := time.Now()
	sqlkit.Postgres(t, server.URL(), "SELECT pg_terminate_backend(pid) FROM hasp_holders WHERE name = 'a'") // not the waiter, which may have a lock for a moment
	testkit.Lost(t, held, hasp.ReasonDenied)
	took := time.Since(began)
	got := testkit.Granted(t, next)
	if got.Token() <= held.Token() {
		t.Errorf("token %d after %d", got.Token(), held.Token())
	}
	testkit.Release(t, got)
	return took
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
	for _, params := range []string{"strategy=advisory", "strategy=advisory&fence=off"} {
		storeURL := sqlkit.PostgresStore(t, params)
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
		before := pglock.Idle(b)
		waiter := s.Ticket(testkit.Request("a"))
		if v, err := waiter.Enqueue(t.Context()); v.Held || err != nil {
			t.Fatalf("%s: %+v, %v", params, v, err)
		}
		leave(waiter)
		if after := pglock.Idle(b); before < 2 || after != before-1 {
			t.Errorf("%s: %d idle connections, and %d after one has waited", params, before, after)
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
	if !errors.Is(err, hasp.ErrInvalidOption) || !strings.Contains(err.Error(), "for the time of a transaction") {
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
