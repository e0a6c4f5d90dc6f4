package pglock_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// opened is a session below the core, which renews nothing by itself. What it is told of as gone is
// sent to the channel.
func opened(t testing.TB, storeURL string, ttl time.Duration) (driver.Session, <-chan string) {
	t.Helper()
	gone := make(chan string, 100)
	b := testkit.Open(t, storeURL)
	s, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: ttl, Gone: func(id string, _ error) { gone <- id }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(context.Background()); b.Close() })
	return s, gone
}

func mutex(name string) driver.Request {
	return driver.Request{Name: name, ID: rand.Text(), Units: driver.Whole, Capacity: driver.Whole, Owner: "{}", Since: time.Now()}
}

func enqueue(t testing.TB, ticket driver.Ticket) {
	t.Helper()
	if v, err := ticket.Enqueue(testkit.Context(t)); err != nil || !v.Held {
		t.Fatalf("enqueue: %+v, %v", v, err)
	}
}

func leave(t testing.TB, ticket driver.Ticket) {
	t.Helper()
	if err := ticket.Leave(testkit.Context(t)); err != nil {
		t.Fatalf("leave: %v", err)
	}
}

func renew(t testing.TB, s driver.Session) {
	t.Helper()
	if _, err := s.KeepAlive(testkit.Context(t)); err != nil {
		t.Fatalf("renewal: %v", err)
	}
}

// place says where the entry of a name is.
func place(t testing.TB, serverURL, name string) string {
	t.Helper()
	return ask[string](t, serverURL, `SELECT CASE WHEN h_id <> '' THEN 'row ' ELSE '' END || (SELECT count(*) FROM hasp_entries e WHERE e.name = n.name)::text
		FROM hasp_names n WHERE n.name = $1`, name)
}

// The holder of a name without waiters is in the name's row; the owner's renewal moves it to
// the entries, and so does a client that finds it there.
func TestRowHolder(t *testing.T) {
	t.Parallel()
	server := private(t)
	s, gone := opened(t, server.URL(), ends)
	expect := func(name, want string) {
		t.Helper()
		if got := place(t, server.URL(), name); got != want {
			t.Errorf("the entry of %q is at %q, want %q", name, got, want)
		}
	}
	for _, round := range []string{"a new name", "an old one"} {
		a := s.Ticket(mutex("a"))
		enqueue(t, a)
		expect("a", "row 0")
		leave(t, a)
		expect("a", "0")
		if err := a.Leave(testkit.Context(t)); !errors.Is(err, driver.ErrGone) {
			t.Errorf("%s: leave again: %v", round, err)
		}
	}
	renewed, found := s.Ticket(mutex(`re"ne\wed {,}`)), s.Ticket(mutex("found"))
	enqueue(t, renewed)
	enqueue(t, found)
	other, _ := opened(t, server.URL(), calm)
	try := mutex("found")
	try.NoWait = true
	if v, err := other.Ticket(try).Enqueue(testkit.Context(t)); err != nil || v.Held || v.Holder != "{}" {
		t.Fatalf("a try beside a row holder: %+v, %v", v, err)
	}
	expect("found", "1")
	renew(t, s)
	expect(`re"ne\wed {,}`, "1")
	for _, ticket := range []driver.Ticket{renewed, found} {
		leave(t, ticket)
	}
	expect("found", "0")
	enqueue(t, s.Ticket(mutex("found")))
	expect("found", "row 0")
	large := mutex("large")
	large.Value = make([]byte, 1024)
	enqueue(t, s.Ticket(large))
	expect("large", "1")
	if len(gone) > 0 {
		t.Errorf("%d losses were told", len(gone))
	}
}

// S5: a row holder that was removed by hand, or by an operator, is missed at the next renewal.
func TestRowHolderRemoved(t *testing.T) {
	t.Parallel()
	server := private(t)
	s, gone := opened(t, server.URL(), ends)
	kept, deleted, evicted := mutex("kept"), mutex("deleted"), mutex("evicted")
	for _, r := range []driver.Request{kept, deleted, evicted} {
		enqueue(t, s.Ticket(r))
	}
	sqlkit.Postgres(t, server.URL(), "DELETE FROM hasp_names WHERE name = 'deleted'")
	operator := testkit.Open(t, server.URL())
	t.Cleanup(func() { operator.Close() })
	if err := operator.(driver.Evicter).Evict(testkit.Context(t), "evicted", evicted.ID, ""); err != nil {
		t.Fatal(err)
	}
	renew(t, s)
	told := map[string]bool{}
	for len(gone) > 0 {
		told[<-gone] = true
	}
	if !told[deleted.ID] || !told[evicted.ID] || told[kept.ID] || len(told) != 2 {
		t.Errorf("told of %v; deleted is %s, evicted %s, kept %s", told, deleted.ID, evicted.ID, kept.ID)
	}
}

// holdsRequests has the server stop each request that makes a row holder of a name that is known.
// The function that it returns makes one, does something meanwhile, and returns the answer.
func holdsRequests(t *testing.T, server *backends.Postgres) (during func(ticket driver.Ticket, do func()) (driver.Verdict, error)) {
	t.Helper()
	sqlkit.Postgres(t, server.URL(), `CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock(42); RETURN NULL; END';
		CREATE TRIGGER hold AFTER UPDATE ON hasp_names FOR EACH ROW WHEN (NEW.h_id <> '') EXECUTE FUNCTION hold()`)
	return func(ticket driver.Ticket, do func()) (v driver.Verdict, err error) {
		t.Helper()
		hold := executor(t, server.URL())
		hold("SELECT pg_advisory_lock(42)")
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			v, err = ticket.Enqueue(testkit.Context(t))
		}()
		blocked(t, server, "42")
		do()
		hold("SELECT pg_advisory_unlock(42)")
		<-answered
		return v, err
	}
}

// A row holder that is to be moved, since a renewal has begun beside its request, finds the disk
// full: it is there, and so the answer is no refusal, and it can be released. (Its client was told
// that it has nothing, and the name was taken for a TTL.)
func TestRowHolderThatCannotBeMoved(t *testing.T) {
	t.Parallel()
	server := private(t)
	s, _ := opened(t, server.URL(), ends)
	warm := s.Ticket(mutex("full"))
	enqueue(t, warm)
	leave(t, warm)
	ticket := s.Ticket(mutex("full"))
	v, err := holdsRequests(t, server)(ticket, func() {
		renew(t, s)
		sqlkit.Postgres(t, server.URL(), `CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'as if' USING ERRCODE = 'disk_full'; END$$;
			CREATE TRIGGER no_room BEFORE INSERT ON hasp_entries FOR EACH ROW EXECUTE FUNCTION no_room()`)
	})
	if err == nil || errors.Is(err, driver.ErrRefused) {
		t.Errorf("%+v, %v; want an error that leaves open what there is", v, err)
	}
	if got := place(t, server.URL(), "full"); got != "row 0" {
		t.Errorf("the entry is at %q", got)
	}
	leave(t, ticket)
	if got := place(t, server.URL(), "full"); got != "0" {
		t.Errorf("after it has left the entry is at %q", got)
	}
}

// S1: a renewal begins and ends while a request is under way at the server. The request's row
// holder is older than the renewal, which has not seen it, and its own time ends before our trust
// does. So it is moved to the entries before the answer counts. Control: without a renewal it
// stays.
func TestRenewalBesideRequest(t *testing.T) {
	t.Parallel()
	server := private(t)
	s, _ := opened(t, server.URL(), ends)
	for _, name := range []string{"beside", "control"} {
		warm := s.Ticket(mutex(name))
		enqueue(t, warm)
		leave(t, warm)
	}
	during := holdsRequests(t, server)
	for name, want := range map[string]string{"beside": "1", "control": "row 0"} {
		v, err := during(s.Ticket(mutex(name)), func() {
			if name == "beside" {
				renew(t, s)
			}
		})
		if err != nil || !v.Held {
			t.Fatalf("%s: %+v, %v", name, v, err)
		}
		if got := place(t, server.URL(), name); got != want {
			t.Errorf("%s: the entry is at %q, want %q", name, got, want)
		}
	}
}

// L4: a request that the network delivers after its client has given up and left makes a row holder
// that no client knows of, while its session lives. No client has to look for it: its own time
// ends, a TTL later, and renewals of the session do not put that off. (The row is set back by a
// TTL, instead of waiting for it: a session that lasts while others keep the machine busy has a
// long one.) Control: one with an hour more keeps the others out in spite of renewals, until a
// client finds it; then it is among the entries, where the owner's next renewal misses it.
func TestLateHolder(t *testing.T) {
	t.Parallel()
	server := private(t)
	for _, x := range []struct{ name, more string }{{"ends", "0"}, {"control", "3600000000"}, {"new name", "0"}} {
		late, slow := behindLate(t, server.URL(), "owner of "+x.name) // in no other request
		s, _ := opened(t, slow, calm)
		r := mutex("late " + x.name)
		r.Owner = "owner of " + x.name
		if x.name != "new name" {
			direct, _ := opened(t, server.URL(), calm)
			first := direct.Ticket(mutex(r.Name))
			enqueue(t, first)
			leave(t, first)
		}
		ctx, giveUp := context.WithCancel(testkit.Context(t))
		ticket := s.Ticket(r)
		go func() {
			late.wait(ctx, t)
			giveUp()
		}()
		if v, err := ticket.Enqueue(ctx); err == nil {
			t.Fatalf("%s: the request was answered: %+v", x.name, v)
		}
		if err := ticket.Leave(testkit.Context(t)); !errors.Is(err, driver.ErrGone) {
			t.Fatalf("%s: leave: %v", x.name, err)
		}
		late.Deliver()
		testkit.Eventually(t, "a late row holder", func() bool {
			renew(t, s)
			return ask[int](t, server.URL(), "SELECT count(*)::int FROM hasp_names WHERE h_id = $1", r.ID) == 1
		})
		until := func() int64 {
			return ask[int64](t, server.URL(), "SELECT h_until FROM hasp_names WHERE h_id = $1", r.ID)
		}
		was := until()
		renew(t, s)
		if now := until(); now != was || now > ask[int64](t, server.URL(), "SELECT hasp_now()")+calm.Microseconds() {
			t.Errorf("%s: its time ends at %d, and after a renewal at %d", x.name, was, now)
		}
		sqlkit.Postgres(t, server.URL(), fmt.Sprintf("UPDATE hasp_names SET h_until = hasp_now() + %s WHERE h_id = '%s'", x.more, r.ID))
		renew(t, s)
		b := testkit.Open(t, server.URL())
		list, err := b.List(t.Context(), r.Name, 0)
		b.Close()
		if err != nil || (len(list) == 1) != (x.name == "control") {
			t.Errorf("%s: after its time %d entries, %v", x.name, len(list), err)
		}
		other, _ := opened(t, server.URL(), calm)
		try := mutex(r.Name)
		try.NoWait = true
		v, err := other.Ticket(try).Enqueue(testkit.Context(t))
		if err != nil || v.Held != (x.name != "control") {
			t.Errorf("%s: a try after its time: %+v, %v", x.name, v, err)
		}
		if x.name == "control" {
			testkit.Eventually(t, "a lock that was found and removed", func() bool {
				renew(t, s)
				try := mutex(r.Name)
				try.NoWait = true
				v, err := other.Ticket(try).Enqueue(testkit.Context(t))
				return err == nil && v.Held
			})
		}
	}
}

// Clients that try one name at once wait for its row and its turn in one order: the server finds no
// deadlock, which would take it a second.
func TestRowHolderNoDeadlock(t *testing.T) {
	t.Parallel()
	server := private(t)
	const clients, rounds = 8, 200
	var wg sync.WaitGroup
	for range clients {
		b := testkit.Open(t, server.URL())
		s, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: ends, Gone: func(string, error) {}})
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for range rounds {
				r := mutex("contended")
				r.NoWait = true
				ticket := s.Ticket(r)
				v, err := ticket.Enqueue(t.Context())
				if err == nil && v.Held {
					err = ticket.Leave(t.Context())
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
			s.Close(context.Background())
			b.Close() // its backends tell of their deadlocks when they end
		})
	}
	wg.Wait()
	deadlocks := func() int64 {
		return ask[int64](t, server.URL(), "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
	}
	testkit.Eventually(t, "the end of the connections", func() bool {
		return ask[int](t, server.URL(), "SELECT count(*)::int FROM pg_stat_activity WHERE application_name = 'hasp'") == 0
	})
	if n := deadlocks(); n > 0 {
		t.Errorf("%d deadlocks", n)
	}
}
