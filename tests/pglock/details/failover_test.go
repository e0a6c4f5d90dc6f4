package pglock_test

import (
	"context"
	"crypto/rand"
	"errors"
	"net/url"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// S7: a Leave gets no answer, and the next finds nothing. After a crash of the server that is
// the first one's doing, and the lock was kept to its end. But a replica that was promoted without
// the newest commits has never had the entry, and may have granted the lock to another long before:
// that there is no entry proves nothing then.
func TestGoneAfterFailover(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	primary := private(t)
	stream := testkit.Proxy(t, primary.Addr)
	replica := backends.StartPostgres(t, backends.PostgresOptions{ReplicaOf: stream.Addr()})
	net, throughURL := testkit.Behind(t, primary.URL())
	u, err := url.Parse(throughURL)
	if err != nil {
		t.Fatal(err)
	}
	u.Host += "," + replica.Addr
	u.RawQuery += "&durable_release=on" // else a crash may forget a release, and the next finds the entry
	b := testkit.Open(t, u.String())
	t.Cleanup(func() { b.Close() })
	s, _, err := b.Open(testkit.Context(t), driver.SessionOptions{TTL: 10 * slack, Gone: func(string, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(context.Background()) })
	held := func(name string) driver.Ticket {
		t.Helper()
		ticket := s.Ticket(driver.Request{Name: name, ID: rand.Text(), Units: driver.Whole, Capacity: driver.Whole, Since: time.Now()})
		if v, err := ticket.Enqueue(testkit.Context(t)); err != nil || !v.Held {
			t.Fatal(v, err)
		}
		return ticket
	}
	// unanswered leaves, and loses the answer.
	unanswered := func(ticket driver.Ticket, name string) {
		t.Helper()
		cut := net.Lose(faultnet.Down, 1, faultnet.Contains(name))
		if err := ticket.Leave(testkit.Context(t)); err == nil || errors.Is(err, driver.ErrGone) {
			t.Fatalf("a Leave without an answer: %v", err)
		}
		<-cut
	}

	// The control: one server, which crashes.
	crashed := held("crashed")
	unanswered(crashed, "crashed")
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := primary.Restart(); err != nil {
		t.Fatal(err)
	}
	if err := until(t, crashed.Leave); !errors.Is(err, driver.ErrGone) {
		t.Errorf("after a crash: %v, want %v", err, driver.ErrGone)
	}

	// What the replica has is as certain there, when a renewal has seen it there.
	kept := held("kept")
	testkit.Eventually(t, "the replica has the entries", func() bool {
		return ask[int](t, replica.URL(), "SELECT count(*)::int FROM hasp_names WHERE name = 'kept' AND (h_id <> '' OR EXISTS (SELECT FROM hasp_entries WHERE name = 'kept'))") == 1
	})
	stream.Partition()
	forgotten := held("forgotten")
	unanswered(forgotten, "forgotten")
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	net.Refuse()
	ask[bool](t, replica.URL(), "SELECT pg_promote(true)")
	if err := until(t, forgotten.Leave); !errors.Is(err, driver.ErrForgotten) {
		t.Errorf("a replica that never had the entry: %v", err)
	}
	testkit.Eventually(t, "a renewal", func() bool {
		_, err := s.KeepAlive(testkit.Context(t))
		return err == nil
	})
	if err := kept.Leave(testkit.Context(t)); err != nil {
		t.Errorf("an entry that the replica has: %v", err)
	}
	if err := kept.Leave(testkit.Context(t)); !errors.Is(err, driver.ErrGone) {
		t.Errorf("an entry that the replica had: %v", err)
	}
}

// until repeats a call until a server has answered.
func until(t *testing.T, call func(context.Context) error) (err error) {
	t.Helper()
	testkit.Eventually(t, "an answer", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		err = call(ctx)
		return err == nil || errors.Is(err, driver.ErrGone) || errors.Is(err, driver.ErrForgotten)
	})
	return err
}

// S2: the server crashes before it has written the newest tokens of advisory to its disk,
// and its clock is an hour behind when it comes back. Tokens grow nevertheless.
func TestTokensAfterCrash(t *testing.T) {
	t.Parallel()
	// So that it has not written them: what fills a page of the log wakes the one that writes it,
	// as an image of a page does.
	server := private(t, "wal_writer_delay = 10s", "full_page_writes = off")
	for tries := 1; !tokensAfterCrash(t, server); tries++ {
		if tries == 10 {
			t.Errorf("no crash has forgotten anything: this has tested nothing")
			break
		}
	}
}

// tokensAfterCrash returns false if the server had written everything when it crashed: on a busy
// machine it has the time to, for its reasons.
func tokensAfterCrash(t *testing.T, server *backends.Postgres) bool {
	t.Helper()
	c := client(t, sqlkit.With(server.URL(), "strategy=advisory"))
	testkit.Release(t, testkit.Lock(t, c, "a"))
	sqlkit.Postgres(t, server.URL(), "CHECKPOINT")
	testkit.Release(t, testkit.Lock(t, c, "a"))
	held := testkit.Lock(t, c, "a")
	last := held.Token()
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	forgotten := uint64(ask[int64](t, server.URL(), "SELECT last_value FROM hasp_tokens")) < last
	testkit.Lost(t, held, hasp.ReasonDenied)
	sqlkit.Postgres(t, server.URL(), "CREATE OR REPLACE FUNCTION hasp_now() RETURNS bigint LANGUAGE sql VOLATILE RETURN (extract(epoch FROM clock_timestamp() - interval '1 hour') * 1000000)::bigint")
	for range 3 {
		l := testkit.Lock(t, client(t, sqlkit.With(server.URL(), "strategy=advisory")), "a")
		if l.Token() <= last {
			t.Errorf("token %d after %d", l.Token(), last)
		}
		last = l.Token()
		testkit.Release(t, l)
	}
	sqlkit.Postgres(t, server.URL(), "CREATE OR REPLACE FUNCTION hasp_now() RETURNS bigint LANGUAGE sql VOLATILE RETURN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
	return forgotten
}
