package mysqllock_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// The counts are of the test's own connections: the server's would be of all its clients, of those
// too that a test before has left to renew and to sweep. One server for all, which come one after
// the other. Statements are counted and no times: it does not wait for its disk.
func TestCosts(t *testing.T) {
	t.Parallel()
	m := backends.StartMariaDB(t, backends.MariaDBOptions{Config: []string{
		"max_connections=4000", "innodb_flush_log_at_trx_commit=0"}})
	for name, test := range map[string]func(*testing.T, *backends.MariaDB){
		"Uncontended": uncontendedCosts, "RefusedTry": refusedTryCosts, "Waiters": waitersCosts,
	} {
		t.Run(name, func(t *testing.T) { test(t, m) })
	}
	for _, n := range []int{8, 64} {
		t.Run(fmt.Sprint("Clients/", n), func(t *testing.T) { clientsCosts(t, m, n) })
	}
	for _, n := range []int{8, 64, 512} {
		t.Run(fmt.Sprint("Queue/", n), func(t *testing.T) { queueCosts(t, m, n) })
	}
}

// counter counts the statements that pass a network. Signs of life are none: the server executes
// nothing for a ping. A sweep comes once a minute from a client that renews, a new block of tokens
// once in ten seconds, and the record of a holder after 20 ms; they are not part of the costs of a
// request.
type counter struct {
	*faultnet.Proxy
	db    *sql.DB
	mu    sync.Mutex
	all   int64
	texts map[string]int // by their beginnings, for who finds one too many
}

// counted is a network to the server, and the URL that leads through it.
func counted(t testing.TB, m *backends.MariaDB) (*counter, string) {
	t.Helper()
	p, through := testkit.Behind(t, sqlkit.MariaDBStore(t, m))
	c := &counter{Proxy: p, db: sqlkit.MariaDBAdmin(t, m), texts: map[string]int{}}
	p.Lose(faultnet.Up, 1, func(chunk []byte) bool { // it never accepts, and so sees all
		// A packet is its length in three bytes, its number, and the command: a query, or to
		// prepare one, or to execute what was prepared.
		if len(chunk) > 5 && chunk[3] == 0 && (chunk[4] == 0x03 || chunk[4] == 0x16 || chunk[4] == 0x17) {
			c.note(string(chunk[5:]))
		}
		return false
	})
	return c, through
}

func (c *counter) note(text string) {
	if strings.Contains(text, "sweep_") || strings.Contains(text, "raise_") || strings.Contains(text, "_note_2") {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all++
	text, _, _ = strings.Cut(text, "(")
	c.texts[text]++
}

// spent returns how many statements were sent while fn ran, and which.
func (c *counter) spent(t testing.TB, fn func()) (int64, string) {
	t.Helper()
	// A client of a test before may still be leaving, on a busy machine for so long that others
	// help.
	testkit.Eventually(t, "no session is being removed", func() bool {
		return number(t, c.db, "SELECT COUNT(*) FROM locks.hasp_sessions WHERE expires <= UTC_TIMESTAMP(6)") == 0
	})
	c.mu.Lock()
	before := c.all
	clear(c.texts)
	c.mu.Unlock()
	fn()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all - before, fmt.Sprint(c.texts)
}

// One statement to acquire and one to release, for each primitive and strategy.
func uncontendedCosts(t *testing.T, m *backends.MariaDB) {
	count, base := counted(t, m)
	for _, x := range []struct {
		params string
		each   int64
	}{{"strategy=table", 2}, {"strategy=getlock", 2}, {"strategy=getlock&fence=off", 2}} {
		c := client(t, sqlkit.With(base, x.params), hasp.WithTTL(time.Hour))
		locks := map[string]func(context.Context) (*hasp.Lease, error){"Lock": c.Mutex("a").Lock, "TryLock": c.Mutex("a").TryLock}
		if x.params == "strategy=table" {
			s := c.Semaphore("s", 5)
			locks["RLock"], locks["TryRLock"] = c.RWMutex("b").RLock, c.RWMutex("b").TryRLock
			locks["Acquire"] = func(ctx context.Context) (*hasp.Lease, error) { return s.Acquire(ctx, 2) }
		}
		for what, lock := range locks {
			cycle := func() {
				l, err := lock(ctx(t))
				if err != nil {
					t.Fatal(err)
				}
				testkit.Release(t, l)
			}
			cycle() // opens connections
			const n = 50
			if got, texts := count.spent(t, func() {
				for range n {
					cycle()
				}
			}); got != x.each*n {
				t.Errorf("%s, %s: %d statements for %d locks and releases, want %d: %s", x.params, what, got, n, x.each*n, texts)
			}
		}
	}
}

// A refused try is one statement.
func refusedTryCosts(t *testing.T, m *backends.MariaDB) {
	count, base := counted(t, m)
	testkit.Lock(t, client(t, base, hasp.WithTTL(time.Hour)), "a")
	c := client(t, base, hasp.WithTTL(time.Hour))
	_, _ = c.Mutex("a").TryLock(ctx(t))
	const n = 50
	if got, texts := count.spent(t, func() {
		for range n {
			if _, err := c.Mutex("a").TryLock(ctx(t)); err == nil {
				t.Fatal("locked twice")
			}
		}
	}); got != n {
		t.Errorf("%d statements for %d tries: %s", got, n, texts)
	}
}

// With any number of clients an acquisition costs the same: to enter, to leave, to listen
// for as long as it takes, and to wake.
func clientsCosts(t *testing.T, m *backends.MariaDB, n int) {
	count, base := counted(t, m)
	base = sqlkit.With(base, "connections=1")
	clients := make([]*hasp.Client, n)
	for i := range clients { // each has its connections
		clients[i] = client(t, base, hasp.WithTTL(time.Hour))
		testkit.Release(t, testkit.Lock(t, clients[i], fmt.Sprint("warm-", i)))
	}
	first := testkit.Lock(t, client(t, base, hasp.WithTTL(time.Hour)), "a")
	rounds := max(1, 64/n)
	var listens atomic.Int64
	got, texts := count.spent(t, func() {
		var wg sync.WaitGroup
		for _, c := range clients {
			wg.Go(func() {
				for range rounds {
					asked := time.Now()
					if err := c.Do(context.Background(), "a", func(context.Context) error {
						listens.Add(1 + int64(time.Since(asked)/listenMost))
						return nil
					}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		testkit.Release(t, first)
		wg.Wait()
	})
	all := int64(n * rounds)
	t.Logf("%d waiters: %.2f statements an acquisition, of which %.2f to listen", n, float64(got)/float64(all), float64(listens.Load())/float64(all))
	// Each client finds out once that the name is contended.
	if most := 3*all + int64(n) + listens.Load() + 5; got > most {
		t.Errorf("%d statements for %d acquisitions, want %d at most: %s", got, all, most, texts)
	}
}

// listenMost is how long one call listens at most. Who waits for longer makes another.
const listenMost = 5 * time.Second

// With any number of waiters in one queue a hand-over costs the same: to leave, which grants to
// the next, and the listening that tells of it.
func queueCosts(t *testing.T, m *backends.MariaDB, n int) {
	count, base := counted(t, m)
	b := testkit.Open(t, sqlkit.With(base, "connections=1"))
	defer b.Close()
	// Below the core, whose local queue would let one of a client's waiters into the queue.
	s, _, err := b.Open(ctx(t), driver.SessionOptions{TTL: time.Hour, Gone: func(string, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	tickets := make([]driver.Ticket, n+1)
	for i := range tickets {
		tickets[i] = s.Ticket(request(fmt.Sprint("queue-", n), rand.Text()))
		if v, err := tickets[i].Enqueue(ctx(t)); err != nil || v.Held != (i == 0) {
			t.Fatalf("entry %d: %+v, %v", i, v, err)
		}
	}
	began := time.Now()
	got, texts := count.spent(t, func() {
		for i, ticket := range tickets {
			for held := i == 0; !held; {
				v, err := ticket.Wait(ctx(t))
				if err != nil {
					t.Fatalf("waiter %d of %d was not told: %v", i, n, err)
				}
				held = v.Held
			}
			if err := ticket.Leave(ctx(t)); err != nil {
				t.Fatal(err)
			}
		}
	})
	// One call may be under way in the beginning, and others end because their time is over.
	most := int64(2*n) + 3 + int64(time.Since(began)/listenMost)
	t.Logf("%d waiters: %d statements, in %s", n, got, time.Since(began).Round(time.Millisecond))
	if got < int64(n) || got > most {
		t.Errorf("%d statements for %d hand-overs, want %d at most: %s", got, n, most, texts)
	}
}

// However many locks a client waits for, it has the pool's connections, one that renews and
// one that listens; and while nothing happens it asks once in five seconds.
func waitersCosts(t *testing.T, m *backends.MariaDB) {
	count, base := counted(t, m)
	base = sqlkit.With(base, "connections=4")
	holder, c := client(t, base, hasp.WithTTL(time.Hour)), client(t, base, hasp.WithTTL(time.Hour))
	db := sqlkit.MariaDBAdmin(t, m)
	db.SetMaxOpenConns(1)
	const n = 200
	var wg sync.WaitGroup
	all, cancel := context.WithCancel(context.Background())
	for i := range n {
		name := fmt.Sprint("w", i)
		testkit.Lock(t, holder, name)
		wg.Go(func() { _, _ = c.Mutex(name).Lock(all) })
	}
	testkit.Eventually(t, "all wait", func() bool {
		return number(t, db, "SELECT COUNT(*) FROM locks.hasp_entries WHERE granted IS NULL") == n
	})
	// 4 + 1 of the holder, 4 + 2 of the one who waits.
	if got := count.Stats().Live; got > 11 {
		t.Errorf("%d connections with %d waiters of one client", got, n)
	}
	// At first another call polls, for a second each, until the one that waits at the wake-up lock
	// is aware of all: after five seconds at most, so a later window has none.
	for try := 1; ; try++ {
		began := time.Now()
		got, texts := count.spent(t, func() { time.Sleep(3 * time.Second) })
		most := 3 + int64(time.Since(began)/listenMost)
		if got <= most {
			break
		}
		if try == 3 {
			t.Errorf("%d statements in %s in which nothing happened, want %d at most: %s", got, time.Since(began), most, texts)
			break
		}
	}
	cancel()
	wg.Wait()
}

// A client that locks one thing after the other has two connections, also while it waits: one for
// renewals and the wake-up locks, and one that asks, and then listens.
func TestConnectionsOfOne(t *testing.T) {
	t.Parallel()
	m := backends.StartMariaDB(t, backends.MariaDBOptions{})
	holder := client(t, sqlkit.MariaDBStore(t, m))
	db := sqlkit.MariaDBAdmin(t, m)
	connections := func() int {
		count, base := counted(t, m)
		c := client(t, base, hasp.WithTTL(time.Hour))
		for range 3 {
			testkit.Release(t, testkit.Lock(t, c, "one"))
			held := testkit.Lock(t, holder, "one")
			next := testkit.Locking(t, c, "one")
			testkit.Eventually(t, "it waits at the wakeup", func() bool {
				return number(t, db, "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock'") == 1
			})
			testkit.Release(t, held)
			testkit.Release(t, <-next)
		}
		return count.Stats().Live
	}
	// A busy machine may keep the goroutine that listens from giving its connection back until the
	// client asks again, which then dials a third one: one client of three may not need it.
	got := connections()
	for try := 1; got != 2 && try < 3; try++ {
		got = connections()
	}
	if got != 2 {
		t.Errorf("%d connections, want 2", got)
	}
}

// To refuse a wrong capacity costs the same however many wait: the server reads the last of the
// queue and not all of it.
func TestMismatchReadsLittle(t *testing.T) {
	t.Parallel()
	m := backends.SharedMariaDB(t)
	b := testkit.Open(t, sqlkit.With(sqlkit.MariaDBStore(t, m), "prefix=mismatch_"))
	defer b.Close()
	s, _, err := b.Open(ctx(t), driver.SessionOptions{TTL: time.Hour, Gone: func(string, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	db := sqlkit.MySQL(t, m.Addr, m.User, m.Password, "locks")
	db.SetMaxOpenConns(1) // the counts are the connection's
	reads := func() (n int64) {
		rows, err := db.Query("SHOW SESSION STATUS LIKE 'Handler_read%'")
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var value int64
			if err := rows.Scan(new(string), &value); err != nil {
				t.Fatal(err)
			}
			n += value
		}
		return n
	}
	session := fmt.Sprintf("x'%x'", "mismatch")
	sqlkit.Exec(t, db, "INSERT INTO mismatch_sessions (id, expires) VALUES ("+session+", '2100-01-01')")
	refusal := func() int64 {
		before := reads()
		for _, mode := range []int{0, 1} {
			var said int
			var capacity int64
			var rest [7]any
			for i := range rest {
				rest[i] = new(any)
			}
			text := fmt.Sprintf("CALL mismatch_enter_2(%d, 'queue', 'other-%d', %s, 1, 7, 0, '', '')", mode, mode, session)
			if err := db.QueryRow(text).Scan(&said, rest[0], rest[1], &capacity, rest[2], rest[3], rest[4], rest[5], rest[6]); err != nil {
				t.Fatal(err)
			}
			if said != 2 || capacity != driver.Whole {
				t.Fatalf("said %d, capacity %d; want it refused", said, capacity)
			}
		}
		return reads() - before
	}
	fill := func(n int) {
		for range n {
			if _, err := s.Ticket(request("queue", rand.Text())).Enqueue(ctx(t)); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill(3)
	few := refusal()
	fill(200)
	if many := refusal(); many > few+5 {
		t.Errorf("%d rows are read with 3 in the queue, %d with 203", few, many)
	}
}
