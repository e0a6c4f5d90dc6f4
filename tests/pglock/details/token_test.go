package pglock_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

func privateAdvisory(t *testing.T) (server *backends.Postgres, store string) {
	t.Helper()
	server = private(t)
	return server, sqlkit.With(server.URL(), "strategy=advisory")
}

// edited replaces a part of a function of ours, with all tables under a prefix.
func edited(t *testing.T, server *backends.Postgres, function, part, by string) {
	t.Helper()
	text := ask[string](t, server.URL(), "SELECT pg_get_functiondef($1::regproc)", function)
	if !strings.Contains(text, part) {
		t.Fatalf("%s has no %q", function, part)
	}
	sqlkit.Postgres(t, server.URL(), strings.Replace(text, part, by, 1))
}

// A token of advisory is no write, and no commit waits for the disk: what the server writes is a
// word for 32 tokens. Control: strategy table writes each.
func TestTokensAreNotWritten(t *testing.T) {
	t.Parallel()
	server := private(t, "autovacuum = off")
	// A sequence's record and its commit have some 150 bytes, and the first after a checkpoint a
	// page more. A holder that a busy machine has kept for 20 ms is recorded, and so are those that
	// get the same lock on the same connection after it: so each batch has its name, and the least
	// that one has written counts.
	const n, times, little = 8, 100, 60
	for _, strategy := range []string{"advisory", "table"} {
		c := client(t, sqlkit.With(server.URL(), "strategy="+strategy))
		last := testkit.Drawn(t, c, "a")
		written := func() int64 {
			return ask[int64](t, server.URL(), "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
		}
		least := int64(math.MaxInt64)
		for i := 0; i < times && least > little; i++ {
			before := written()
			for range n {
				next := testkit.Drawn(t, c, fmt.Sprint("batch-", i))
				if next <= last {
					t.Fatalf("token %d after %d", next, last)
				}
				last = next
			}
			least = min(least, (written()-before)/n)
		}
		t.Logf("%s: %d bytes for a token", strategy, least)
		if (least <= little) != (strategy == "advisory") {
			t.Errorf("%s: at least %d bytes are written for a token", strategy, least)
		}
	}
}

// Tokens grow with the grants while clients raise the ceiling all the time: a block has three of
// them here, and the sequence is set back while others draw. Without the look at base and ceiling
// that fails.
func TestTokensGrowWhileRaised(t *testing.T) {
	t.Parallel()
	server, store := privateAdvisory(t)
	testkit.Drawn(t, client(t, store), "a")
	edited(t, server, "hasp_raise", "bigint := 1023", "bigint := 2")
	edited(t, server, "hasp_raise", "least(262143", "least(2")
	last := testkit.TokensGrow(t, func() *hasp.Client { return client(t, store) })
	top := ask[int64](t, server.URL(), "SELECT ceiling FROM hasp_ceiling")
	for name, got := range last {
		if got > uint64(top) {
			t.Errorf("%s: token %d above the ceiling %d", name, got, top)
		}
	}
}

// One of the server's processes crashes, and the server starts itself again with what its log had
// on the disk: the sequence is back, and the time of the server's start says nothing. A connection
// that came since trusts no base that it has found; one that does (the control) draws a token
// twice.
func TestTokensAfterProcessCrash(t *testing.T) {
	t.Parallel()
	for _, broken := range []bool{false, true} {
		server, store := privateAdvisory(t)
		c := client(t, store)
		testkit.Drawn(t, c, "a")
		if broken {
			edited(t, server, "hasp_raise", "SELECT c.ceiling INTO v_known FROM", "SELECT 0 INTO v_known FROM")
		}
		for tries := 1; ; tries++ {
			last := testkit.Drawn(t, c, "a")
			for range 40 {
				last = testkit.Drawn(t, c, "a")
			}
			// So a crash leaves it, if the newest of the log was not on the disk.
			base := ask[int64](t, server.URL(), "SELECT setval('hasp_tokens', (SELECT base FROM hasp_ceiling))")
			next := testkit.Drawn(t, client(t, store), "a")
			// The control does not trust a number that is ten seconds old, either.
			old := ask[int64](t, server.URL(), "SELECT hasp_now()")-base > 8_000_000
			if grew := next > last; grew != broken {
				break
			}
			if !broken || !old || tries == 5 {
				t.Errorf("broken: %v: token %d after %d", broken, next, last)
				break
			}
		}
	}
}

// The tables are dropped and made again, under connections that stay.
func TestTokensOverDrop(t *testing.T) {
	t.Parallel()
	server, store := privateAdvisory(t)
	old := client(t, store)
	last := testkit.Drawn(t, old, "a")
	for range 8 { // each may begin a block
		last = testkit.Drawn(t, client(t, store), "a")
	}
	sqlkit.Postgres(t, server.URL(), "DROP TABLE hasp_schema, hasp_names, hasp_sessions, hasp_entries, hasp_evictions, hasp_holders, hasp_queues, hasp_ceiling CASCADE")
	testkit.TokensRise(t, last, "a", client(t, store), old, client(t, store))
}

// The record of a holder that arrives when the lock has been given on takes no later one's place,
// nor is it taken for one's on the same connection, also if that was recorded for another name
// meanwhile.
func TestRecordedHolders(t *testing.T) {
	t.Parallel()
	server, store := privateAdvisory(t)
	c := client(t, store)
	check := func(l *hasp.Lease) {
		t.Helper()
		if q := testkit.Entries(t, c, "a"); len(q) != 1 || q[0].ID != l.ID() || q[0].Token != l.Token() {
			t.Errorf("listed %+v, and %s holds with %d", q, l.ID(), l.Token())
		}
	}
	first := recordedLock(t, server, c, "a")
	check(first)
	testkit.Release(t, first)
	for range 3 {
		testkit.Release(t, recordedLock(t, server, c, "b"))
		again := testkit.Lock(t, c, "a")
		if q := ask[string](t, server.URL(), "SELECT id FROM hasp_holders WHERE name = 'a'"); q != again.ID() {
			t.Errorf("on the same connection %s holds, and %s is recorded", again.ID(), q)
		}
		pid := ask[int](t, server.URL(), "SELECT pid FROM hasp_holders WHERE name = 'a'")
		sqlkit.Postgres(t, server.URL(), fmt.Sprintf("SELECT hasp_note('a', (SELECT key FROM hasp_holders WHERE name = 'a'), %d, 'late', '', 0, %d)", first.Token(), pid))
		check(again)
		testkit.Release(t, again)
	}
}

// recordedLock returns when the holder is recorded.
func recordedLock(t *testing.T, server *backends.Postgres, c *hasp.Client, name string) *hasp.Lease {
	t.Helper()
	l := testkit.Lock(t, c, name)
	testkit.Eventually(t, "the record of a holder", func() bool {
		return ask[int](t, server.URL(), "SELECT count(*)::int FROM hasp_holders WHERE id = $1", l.ID()) == 1
	})
	return l
}

// A connection that was recorded for many names is not kept for the next lock; one fewer, and it
// is.
func TestRecordedForManyNames(t *testing.T) {
	t.Parallel()
	server, store := privateAdvisory(t)
	c := client(t, store)
	const most = 100
	first := 0
	for i := 1; i <= most+1; i++ {
		l := recordedLock(t, server, c, fmt.Sprint(i))
		pid := ask[int](t, server.URL(), "SELECT pid FROM hasp_holders WHERE id = $1", l.ID())
		testkit.Release(t, l)
		if i == 1 {
			first = pid
		}
		if kept := pid == first; kept != (i <= most) {
			t.Fatalf("lock %d was given process %d, the first one %d", i, pid, first)
		}
	}
}

// The token is drawn when the lock is held: a waiter's is above any that was drawn while it waited.
func TestTokenIsDrawnUnderLock(t *testing.T) {
	t.Parallel()
	server, store := privateAdvisory(t)
	c, other := client(t, store), client(t, store)
	testkit.Drawn(t, c, "a")
	testkit.Drawn(t, other, "b")
	held := testkit.Lock(t, other, "a")
	next := queued(t, store, "a")
	testkit.Eventually(t, "it waits for the lock itself", func() bool {
		return ask[int](t, server.URL(), "SELECT count(*)::int FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND NOT granted") == 1
	})
	meanwhile := testkit.Drawn(t, c, "b")
	testkit.Release(t, held)
	l := testkit.Granted(t, next)
	if l.Token() <= meanwhile || meanwhile <= held.Token() {
		t.Errorf("token %d, %d was drawn while it waited, and %d before", l.Token(), meanwhile, held.Token())
	}
	testkit.Release(t, l)
}

// A lock that is free, and its token: the CASE draws a number only if the lock was taken, and a
// number that is above the connection's block, or behind the clock, is not used.
func TestFreeLockDrawsItsToken(t *testing.T) {
	t.Parallel()
	server, store := privateAdvisory(t)
	c := client(t, store)
	last := testkit.Drawn(t, c, "a")
	numbers := func() int64 { return ask[int64](t, server.URL(), "SELECT last_value FROM hasp_tokens") }
	for _, sequence := range []string{"ceiling + 5", "base - 20000000", "1"} {
		sqlkit.Postgres(t, server.URL(), "SELECT setval('hasp_tokens', (SELECT "+sequence+" FROM hasp_ceiling))")
		next := testkit.Drawn(t, c, "a")
		if top := ask[int64](t, server.URL(), "SELECT ceiling FROM hasp_ceiling"); next <= last || next > uint64(top) {
			t.Errorf("a sequence that was set to %s: token %d after %d, and the ceiling is %d", sequence, next, last, top)
		}
		last = next
	}
	held := testkit.Lock(t, c, "a")
	before := numbers()
	next := queued(t, store, "a")
	if after := numbers(); after != before {
		t.Errorf("the sequence went from %d to %d for a lock that was not granted", before, after)
	}
	testkit.Release(t, held)
	testkit.Release(t, testkit.Granted(t, next))
}
