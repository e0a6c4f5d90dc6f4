package pglock_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"sync"
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

// Invariant 3: a client that has entered sees all entries ahead, also when none waits for a turn:
// turns spare the server work, and the row's lock orders. The control is the
// classical mistake: a number out of a sequence, drawn before the row lock.
func TestSeqsFollowCommits(t *testing.T) {
	t.Parallel()
	noTurns(t, "unturned_")
	for _, prefix := range []string{"order_", "unturned_"} {
		if n := overtaken(t, prefix); n != 0 {
			t.Errorf("%s: %d entries came in front of one that had entered", prefix, n)
		}
	}
	noTurns(t, "disorder_")
	sqlkit.Postgres(t, backends.SharedPostgres(t).URL(), `CREATE SEQUENCE locks.disorder_numbers START 4000000000000000; GRANT ALL ON locks.disorder_numbers TO keeper;
		CREATE FUNCTION locks.disorder_number() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
		DECLARE
			n bigint := nextval('locks.disorder_numbers');
		BEGIN
			PERFORM pg_sleep(random() * 0.03); -- what a scheduler does now and then
			RETURN n;
		END $$;
		DO $$
		DECLARE
			body text := pg_get_functiondef('locks.disorder_enter'::regproc);
			lock text := E'  UPDATE "locks".disorder_names n SET seq = greatest(n.seq + 1, "locks".disorder_now())';
		BEGIN
			IF strpos(body, lock) = 0 THEN RAISE EXCEPTION 'enter draws its place in another way: %', body; END IF;
			EXECUTE replace(body, lock, E'  o_seq := locks.disorder_number();\n  UPDATE "locks".disorder_names n SET seq = o_seq');
		END $$`)
	seen := 0
	for i := 0; i < 10 && seen == 0; i++ { // chance has a hand in it
		seen = overtaken(t, "disorder_")
	}
	if seen == 0 {
		t.Error("places drawn before the lock were not noticed: this test sees nothing")
	}
}

// noTurns creates the tables of a prefix, and lets everybody into the functions at once.
func noTurns(t *testing.T, prefix string) {
	t.Helper()
	migrated(t, prefix)
	sqlkit.Postgres(t, backends.SharedPostgres(t).URL(), strings.ReplaceAll(`
		CREATE OR REPLACE FUNCTION locks.PREFIX_turn(p_name text, p_slots int) RETURNS text LANGUAGE plpgsql AS $$
		BEGIN RETURN p_name; END $$`, "PREFIX_", prefix))
}

// migrated creates the tables of a prefix.
func migrated(t *testing.T, prefix string) {
	t.Helper()
	b := testkit.Open(t, sqlkit.PostgresStore(t, "prefix="+prefix))
	defer b.Close()
	if _, _, err := b.(driver.Migrator).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// overtaken has many enter one queue at once. Each looks at the queue when it has entered;
// in the end no entry may be ahead that it did not see then.
func overtaken(t *testing.T, prefix string) int {
	const clients, each = 6, 8
	name := rand.Text()
	var mu sync.Mutex
	views := map[uint64]map[uint64]bool{} // who was seen in front, by Seq
	var wg sync.WaitGroup
	var last driver.Backend
	for range clients {
		b := testkit.Open(t, sqlkit.PostgresStore(t, "prefix="+prefix))
		t.Cleanup(func() { b.Close() })
		s, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: 2 * slack, Gone: func(string, error) {}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close(context.Background()) })
		last = b
		wg.Go(func() {
			for range each {
				id := rand.Text()
				ticket := s.Ticket(driver.Request{Name: name, ID: id, Units: driver.Whole, Capacity: driver.Whole, Since: time.Now()})
				if _, err := ticket.Enqueue(testkit.Context(t)); err != nil {
					t.Error(err)
					return
				}
				own, seen := look(t, b, name, id)
				mu.Lock()
				views[own] = seen
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	n := 0
	_, all := look(t, last, name, "")
	for own, seen := range views {
		for seq := range all {
			if seq < own && !seen[seq] {
				n++
			}
		}
	}
	return n
}

func look(t *testing.T, b driver.Backend, name, id string) (own uint64, all map[uint64]bool) {
	list, err := b.List(t.Context(), name, 0)
	if err != nil {
		t.Error(err)
	}
	all = map[uint64]bool{}
	for _, e := range list {
		all[e.Seq] = true
		if e.ID == id {
			own = e.Seq
		}
	}
	return own, all
}

// A commit that notifies takes a lock on the whole database. Renewals never do; a release
// does so once, for the one who is next. The control is a renewal that notifies.
func TestNobodyNotifiesOnRenewal(t *testing.T) {
	t.Parallel()
	if renewals, release := notifications(t, "quiet_"); renewals != 0 || release != 1 {
		t.Errorf("%d notifications by renewals, and %d by a release with three waiters; want 0 and 1", renewals, release)
	}
	migrated(t, "noisy_")
	sqlkit.Postgres(t, backends.SharedPostgres(t).URL(), `ALTER FUNCTION locks.noisy_renew RENAME TO noisy_renew_quietly;
		CREATE FUNCTION locks.noisy_renew(p_session text, p_ttl bigint, p_names text[], p_ids text[], OUT o_alive boolean, OUT o_entries bigint, OUT o_seqs bigint, OUT o_rows bigint, OUT o_row_seqs bigint) LANGUAGE plpgsql AS $$
		BEGIN
			SELECT * INTO o_alive, o_entries, o_seqs, o_rows, o_row_seqs FROM locks.noisy_renew_quietly(p_session, p_ttl, p_names, p_ids);
			PERFORM pg_notify(s.channel, s.id || ' ') FROM locks.noisy_sessions s;
		END $$`)
	if renewals, _ := notifications(t, "noisy_"); renewals == 0 {
		t.Error("renewals that notify were not noticed: this test hears nothing")
	}
}

// notifications counts what is sent to the sessions of a holder and three waiters while
// nothing happens but that each is renewed, and then by a release.
func notifications(t *testing.T, prefix string) (renewals, released int) {
	storeURL := sqlkit.PostgresStore(t, "prefix="+prefix)
	held := testkit.Lock(t, client(t, storeURL, hasp.WithTTL(calm)), "notified")
	for range 3 {
		queued(t, storeURL, "notified", hasp.WithTTL(calm))
	}
	serverURL := backends.SharedPostgres(t).URL()
	spy, err := pgx.Connect(t.Context(), serverURL)
	if err != nil {
		t.Fatal(err)
	}
	defer spy.Close(context.Background())
	sessions := ask[[]string](t, serverURL, "SELECT array_agg(id) FROM locks."+prefix+"sessions")
	for _, channel := range ask[[]string](t, serverURL, "SELECT array_agg(DISTINCT channel) FROM locks."+prefix+"sessions") {
		if _, err := spy.Exec(t.Context(), "LISTEN "+channel); err != nil {
			t.Fatal(err)
		}
	}
	before := ask[int64](t, serverURL, "SELECT max(expires) FROM locks."+prefix+"sessions")
	time.Sleep(calm / 3) // no renewal comes sooner
	testkit.Eventually(t, "a renewal of each", func() bool {
		return ask[int64](t, serverURL, "SELECT min(expires) FROM locks."+prefix+"sessions") > before
	})
	renewals = heard(t, spy, sessions)
	testkit.Release(t, held)
	time.Sleep(T / 4) // for more than one
	return renewals, heard(t, spy, sessions)
}

// heard counts the notifications for these sessions: others of this process share the channel. The
// server delivers them in the order of their commits, and so the last is one that this sends.
func heard(t *testing.T, conn *pgx.Conn, sessions []string) (n int) {
	t.Helper()
	last := rand.Text()
	if _, err := conn.Exec(testkit.Context(t), "LISTEN heard; NOTIFY heard, '"+last+"'"); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := conn.WaitForNotification(testkit.Context(t))
		if err != nil {
			t.Fatal(err)
		}
		if m.Payload == last {
			return n
		}
		if id, _, _ := strings.Cut(m.Payload, " "); slices.Contains(sessions, id) {
			n++
		}
	}
}

// Two queues begin with entries of the same dead sessions, in opposite order, and a client comes to
// each at the same moment. A walk that waited for a row which the other is deleting would be a
// deadlock; that is the control.
func TestRemovalDoesNotDeadlock(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	server := private(t)
	for _, x := range []struct {
		variant, takes string // deleting takes so many seconds
		want           bool
	}{
		{"skips", "0.2", false},
		{"waits", "2", true}, // longer than one of the two can be late, so that they meet
	} {
		variant := x.variant
		storeURL := sqlkit.With(server.URL(), "prefix="+variant+"_")
		testkit.Release(t, testkit.Lock(t, client(t, storeURL), "first use"))
		sqlkit.Postgres(t, server.URL(), strings.NewReplacer("VARIANT", variant, "TAKES", x.takes).Replace(`
			CREATE FUNCTION VARIANT_slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(TAKES); RETURN OLD; END $$;
			CREATE TRIGGER slow BEFORE DELETE ON VARIANT_sessions FOR EACH ROW EXECUTE FUNCTION VARIANT_slow();
			INSERT INTO VARIANT_sessions VALUES ('a', 1), ('b', 1);
			INSERT INTO VARIANT_names (name, seq, queued) VALUES ('x', 2, true), ('y', 2, true);
			INSERT INTO VARIANT_entries VALUES ('x', 1, 'a', '1', 9, 9, '', 0, ''), ('x', 2, 'b', '2', 9, 9, '', 0, ''),
				('y', 1, 'b', '3', 9, 9, '', 0, ''), ('y', 2, 'a', '4', 9, 9, '', 0, '')`))
		if variant == "waits" {
			sqlkit.Postgres(t, server.URL(), `DO $$ DECLARE body text := pg_get_functiondef('waits_walk'::regproc); BEGIN
				IF strpos(body, ' SKIP LOCKED') = 0 THEN RAISE EXCEPTION 'walk removes in another way: %', body; END IF;
				EXECUTE replace(body, ' SKIP LOCKED', ''); END $$`)
		}
		before := ask[int64](t, server.URL(), deadlocks)
		var wg sync.WaitGroup
		for _, name := range []string{"x", "y"} {
			c := client(t, storeURL)
			wg.Go(func() { // served in either case: a deadlock is undone, and asked again
				if err := c.Do(testkit.Context(t), name, func(context.Context) error { return nil }); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		deadlocked := func() bool { return ask[int64](t, server.URL(), deadlocks) > before }
		if x.want {
			testkit.Eventually(t, variant+": a deadlock", deadlocked)
			continue
		}
		time.Sleep(1500 * time.Millisecond) // the server's counters are a second late
		if deadlocked() {
			t.Errorf("%s: a deadlock", variant)
		}
	}
}

const deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"

// Two names may have one number of 64 bits only if the numbers were chosen. Then the holder of the
// second is shown without a name, and nothing else happens.
func TestKeyCollision(t *testing.T) {
	t.Parallel()
	c := client(t, sqlkit.PostgresStore(t, "strategy=advisory", "prefix=collides_"))
	l := testkit.Lock(t, c, "collides")
	if q := listed(t, c, l); len(q) != 1 {
		t.Fatalf("listed %+v, and %s holds", q, l.ID())
	}
	testkit.Release(t, l)
	sqlkit.Postgres(t, backends.SharedPostgres(t).URL(), fmt.Sprintf("UPDATE locks.collides_holders SET key = %d WHERE name = 'collides'", keyOfOther))
	l = testkit.Lock(t, c, "other")
	if q := testkit.Entries(t, c, "other"); len(q) != 1 || q[0].ID != q[0].Session {
		t.Errorf("a second name with the same number: listed %+v", q)
	}
	testkit.Release(t, l)
}

// The record of a holder fails: it is made later, and an operator who asks is told who holds.
func TestFailedRecordIsRepeated(t *testing.T) {
	t.Parallel()
	c := client(t, sqlkit.PostgresStore(t, "strategy=advisory", "prefix=failed_"))
	testkit.Release(t, testkit.Lock(t, c, "a"))
	admin := backends.SharedPostgres(t).URL()
	sqlkit.Postgres(t, admin, "ALTER TABLE locks.failed_holders RENAME TO failed_away")
	l := testkit.Lock(t, client(t, sqlkit.PostgresStore(t, "strategy=advisory", "prefix=failed_")), "a")
	time.Sleep(300 * time.Millisecond) // the record is tried after 20 ms
	sqlkit.Postgres(t, admin, "ALTER TABLE locks.failed_away RENAME TO failed_holders")
	if q := listed(t, c, l); len(q) != 1 {
		t.Errorf("listed %+v, and %s holds", q, l.ID())
	}
	testkit.Release(t, l)
}

// keyOfOther is of the SHA-256 of "other".
const keyOfOther = -2798553888591940776

// L4: dead sessions keep no client out, also while another client is removing them, which may take
// a while if they are many. A try waits for that. (It was told that the name was taken.)
func TestTryBesideRemoval(t *testing.T) {
	t.Parallel()
	server := private(t)
	c := client(t, server.URL())
	testkit.Release(t, testkit.Lock(t, c, "warm-up"))
	sqlkit.Postgres(t, server.URL(), `INSERT INTO hasp_sessions VALUES ('dead', hasp_now() + 3600000000);
		SELECT hasp_enter('first', false, 'a', 'x', 'dead', 2147483647, 2147483647, '', 0, '', 0::bigint);
		UPDATE hasp_sessions SET expires = 1 WHERE id = 'dead'`)
	exec := executor(t, server.URL())
	exec("BEGIN")
	exec("SELECT FROM hasp_sessions WHERE id = 'dead' FOR UPDATE") // as hasp_remove_dead, which then does other work
	tried := make(chan error, 1)
	go func() {
		l, err := c.Mutex("a").TryLock(testkit.Context(t))
		if err == nil {
			err = l.Release(testkit.Context(t))
		}
		tried <- err
	}()
	time.Sleep(300 * time.Millisecond)
	select {
	case err := <-tried:
		t.Fatalf("while the dead session is removed: %v", err)
	default:
	}
	exec("COMMIT")
	if err := <-tried; err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
