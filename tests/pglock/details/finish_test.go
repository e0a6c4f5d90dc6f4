package pglock_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// ends is the TTL of sessions that end by their Close, and not by their expiry as long as a test
// waits.
const ends = 10 * testkit.Patience

// blocksOn has a statement wait for an advisory lock, in a trigger, until the function that it
// returns is called.
func blocksOn(t *testing.T, server *backends.Postgres, number, trigger string) (release func()) {
	t.Helper()
	sqlkit.Postgres(t, server.URL(), `CREATE FUNCTION wait`+number+`() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock(`+number+`); RETURN NULL; END';
		CREATE TRIGGER wait`+number+` AFTER `+trigger+` EXECUTE FUNCTION wait`+number+`()`)
	hold := executor(t, server.URL())
	hold("SELECT pg_advisory_lock(" + number + ")")
	hold("UPDATE hasp_schema SET swept = hasp_now()") // cleaning up wakes waiters, too: not for a minute
	return func() { t.Helper(); hold("SELECT pg_advisory_unlock(" + number + ")") }
}

// blocked waits until a statement waits for that lock.
func blocked(t *testing.T, server *backends.Postgres, number string) {
	t.Helper()
	testkit.Eventually(t, "a statement that waits for the lock "+number, func() bool {
		return ask[int](t, server.URL(), "SELECT count(*)::int FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = "+number) == 1
	})
}

func closing(t *testing.T, s driver.Session) <-chan error {
	closed := make(chan error, 1)
	ctx := testkit.Context(t)
	go func() { closed <- s.Close(ctx) }()
	return closed
}

func tries(t *testing.T, s driver.Session, name string) {
	t.Helper()
	r := mutex(name)
	r.NoWait = true
	if v, err := s.Ticket(r).Enqueue(testkit.Context(t)); err != nil || v.Held {
		t.Fatalf("a try: %+v, %v", v, err)
	}
}

// A session ends while another client begins to wait for its row holder, when the end has already
// looked for entries. The waiter is granted the lock at that end, and does not sleep until the
// session would have expired; also where another client has moved the row holder to the entries
// before it came.
func TestCloseBesideWaiter(t *testing.T) {
	t.Parallel()
	for what, moves := range map[string]func(t *testing.T, serverURL string) (after func()){
		"the waiter": func(*testing.T, string) func() { return func() {} },
		"a try": func(t *testing.T, serverURL string) func() {
			other, _ := opened(t, serverURL, calm)
			tries(t, other, "b")
			return func() {}
		},
		"a waiter that gives up": func(t *testing.T, serverURL string) func() {
			other, _ := opened(t, serverURL, ends)
			first := other.Ticket(mutex("b"))
			if v, err := first.Enqueue(testkit.Context(t)); err != nil || v.Held {
				t.Fatalf("%+v, %v", v, err)
			}
			return func() { leave(t, first) }
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			server := private(t)
			s, _ := opened(t, server.URL(), ends)
			enqueue(t, s.Ticket(mutex("a")))
			renew(t, s)
			enqueue(t, s.Ticket(mutex("b")))
			release := blocksOn(t, server, "42", "DELETE ON hasp_entries FOR EACH ROW WHEN (OLD.name = 'a')")
			closed := closing(t, s)
			blocked(t, server, "42")
			after := moves(t, server.URL())
			got := queued(t, server.URL(), "b", hasp.WithTTL(ends))
			after()
			release()
			if err := testkit.Await(t, "the end of the session", closed); err != nil {
				t.Error(err)
			}
			testkit.Release(t, testkit.Granted(t, got))
		})
	}
}

// The same with a waiter that has moved the row holder, and not committed it, when the session
// begins to end.
func TestCloseBehindWaiter(t *testing.T) {
	t.Parallel()
	server := private(t)
	s, _ := opened(t, server.URL(), ends)
	enqueue(t, s.Ticket(mutex("b")))
	release := blocksOn(t, server, "43", "INSERT ON hasp_entries FOR EACH ROW WHEN (NEW.owner <> '{}')")
	got := testkit.Locking(t, client(t, server.URL(), hasp.WithTTL(ends)), "b")
	blocked(t, server, "43")
	closed := closing(t, s)
	testkit.Eventually(t, "the end of the session, done or behind the waiter", func() bool {
		return len(closed) == 1 ||
			ask[int](t, server.URL(), "SELECT count(*)::int FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%hasp\\_finish%'") == 1
	})
	release()
	testkit.Release(t, testkit.Granted(t, got))
	if err := testkit.Await(t, "the end of the session", closed); err != nil {
		t.Error(err)
	}
}

// A request of the session that the server runs while the session ends makes no entry, and is given
// none, that the end does not find. (A client that waited behind it slept until the session would
// have expired.)
func TestCloseBesideRequest(t *testing.T) {
	t.Parallel()
	server := private(t)
	s, _ := opened(t, server.URL(), ends)
	exporter, _ := opened(t, server.URL(), ends)
	exported := mutex("c")
	enqueue(t, s.Ticket(mutex("a")))
	enqueue(t, exporter.Ticket(exported))
	renew(t, s)
	renew(t, exporter)
	id := ask[string](t, server.URL(), "SELECT session FROM hasp_entries WHERE name = 'a'")
	release := blocksOn(t, server, "42", "DELETE ON hasp_entries FOR EACH ROW WHEN (OLD.name = 'a')")
	closed := closing(t, s)
	blocked(t, server, "42")
	if got := ask[string](t, server.URL(), "SELECT o_state FROM hasp_enter('first', false, 'b', 'late', $1, 2147483647, 2147483647, '{}', 0, '', 0::bigint)", id); got != "dead" {
		t.Errorf("a late request: %s", got)
	}
	if got := ask[string](t, server.URL(), "SELECT hasp_adopt('c', $1, (SELECT seq FROM hasp_entries WHERE name = 'c'), 'adopted', $2, 2147483647, 2147483647, '{}', 0)", exported.ID, id); got != "dead" {
		t.Errorf("a late adoption: %s", got)
	}
	got := testkit.Locking(t, client(t, server.URL(), hasp.WithTTL(ends)), "b")
	testkit.Eventually(t, "its entry, or its row", func() bool {
		return ask[int](t, server.URL(), "SELECT count(*)::int FROM hasp_names n WHERE name = 'b' AND (h_id <> '' OR EXISTS (SELECT FROM hasp_entries e WHERE e.name = n.name AND id <> 'late'))") == 1
	})
	release()
	if err := testkit.Await(t, "the end of the session", closed); err != nil {
		t.Error(err)
	}
	testkit.Release(t, testkit.Granted(t, got))
}

// The other order: the request has made its entry, and not committed it, when the session begins to
// end. The end waits for it.
func TestCloseBehindRequest(t *testing.T) {
	t.Parallel()
	server := private(t)
	s, _ := opened(t, server.URL(), ends)
	enqueue(t, s.Ticket(mutex("a")))
	renew(t, s)
	id := ask[string](t, server.URL(), "SELECT session FROM hasp_entries WHERE name = 'a'")
	release := blocksOn(t, server, "43", "INSERT ON hasp_entries FOR EACH ROW WHEN (NEW.id = 'late')")
	request := executor(t, server.URL())
	made := make(chan struct{})
	go func() {
		defer close(made)
		request("SELECT hasp_enter('first', false, 'b', 'late', '" + id + "', 2147483647, 2147483647, '{}', 0, '', 0::bigint)")
	}()
	blocked(t, server, "43")
	closed := closing(t, s)
	testkit.Eventually(t, "the end of the session, done or behind the request", func() bool {
		return len(closed) == 1 ||
			ask[int](t, server.URL(), "SELECT count(*)::int FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%hasp\\_finish%'") == 1
	})
	release()
	testkit.Await(t, "the request", made)
	if err := testkit.Await(t, "the end of the session", closed); err != nil {
		t.Error(err)
	}
	if n := ask[int](t, server.URL(), "SELECT count(*)::int FROM hasp_entries"); n != 0 {
		t.Errorf("%d entries are left", n)
	}
}

// An observer that comes at that moment looks again soon. Control: the row holder of a session that
// goes on.
func TestCloseBesideWatch(t *testing.T) {
	t.Parallel()
	server := private(t)
	s, _ := opened(t, server.URL(), ends)
	other, _ := opened(t, server.URL(), ends)
	enqueue(t, s.Ticket(mutex("a")))
	renew(t, s)
	enqueue(t, s.Ticket(mutex("b")))
	enqueue(t, other.Ticket(mutex("control")))
	release := blocksOn(t, server, "42", "DELETE ON hasp_entries FOR EACH ROW WHEN (OLD.name = 'a')")
	closed := closing(t, s)
	blocked(t, server, "42")
	for name, soon := range map[string]bool{"b": true, "control": false} {
		us := ask[int64](t, server.URL(), "SELECT hasp_watch($1, 1000000)", name)
		if (us == 1) != soon {
			t.Errorf("the entry of %q may end in %d µs", name, us)
		}
	}
	release()
	if err := testkit.Await(t, "the end of the session", closed); err != nil {
		t.Error(err)
	}
}

// Sessions end, renew and wait for each other's names at once, and the server finds no deadlock.
func TestCloseNoDeadlock(t *testing.T) {
	t.Parallel()
	server := private(t)
	names := []string{"a", "b", "c", "d"}
	b := testkit.Open(t, server.URL())
	t.Cleanup(func() { b.Close() })
	testkit.Session(t, b, calm, nil) // which makes the tables
	before := ask[int64](t, server.URL(), deadlocks)
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			for range 60 {
				s, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: ends, Gone: func(string, error) {}})
				if err != nil {
					t.Error(err)
					return
				}
				for _, i := range rand.Perm(len(names)) {
					r := mutex(names[i])
					r.NoWait = rand.N(2) == 0
					if _, err := s.Ticket(r).Enqueue(t.Context()); err != nil {
						t.Error(err)
					}
				}
				ctx, cancel := context.WithCancel(t.Context())
				wg.Go(func() { _, _ = s.KeepAlive(ctx) }) // which ends with the session, or with ctx
				if err := s.Close(t.Context()); err != nil {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	time.Sleep(1500 * time.Millisecond) // the server's counters are a second late
	if n := ask[int64](t, server.URL(), deadlocks); n > before {
		t.Errorf("%d deadlocks", n-before)
	}
}
