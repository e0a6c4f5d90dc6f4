package mysqllock_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// A token of getlock is no write: what the server writes is a block of them, at times. Control:
// strategy table writes each.
func TestTokensAreNotWritten(t *testing.T) {
	t.Parallel()
	m := backends.StartMariaDB(t, backends.MariaDBOptions{})
	db := sqlkit.MariaDBAdmin(t, m)
	// A block is two rows in ten seconds. A holder that a busy machine has kept for 20 ms is
	// recorded, and so are those that get the same lock on the same connection after it: so each
	// batch has its name, and the least that one has written counts.
	const n, times, little = 8, 100, 4
	for _, strategy := range []string{"getlock", "table"} {
		c := client(t, sqlkit.With(sqlkit.MariaDBStore(t, m), "strategy="+strategy))
		least := int64(math.MaxInt64)
		for i := 0; i < times && least > little; i++ {
			before, last := sqlkit.MySQLStatus(t, db, "Handler_update"), uint64(0)
			for range n {
				next := testkit.Drawn(t, c, fmt.Sprint("batch-", i))
				if next <= last {
					t.Fatalf("token %d after %d", next, last)
				}
				last = next
			}
			least = min(least, sqlkit.MySQLStatus(t, db, "Handler_update")-before)
		}
		t.Logf("%s: %d rows for %d tokens", strategy, least, n)
		if (least <= little) != (strategy == "getlock") {
			t.Errorf("%s: at least %d rows are written for %d tokens", strategy, least, n)
		}
	}
}

// A server that is started anew goes on above all that it had reserved, though its clock was set
// back meanwhile; and so does another connection if UUID_SHORT() begins again within the old block.
//
// The controls do not look at the ceiling, and at what a connection has seen.
func TestTokensOverRestart(t *testing.T) {
	t.Parallel()
	m := backends.StartMariaDB(t, backends.MariaDBOptions{})
	store := sqlkit.MariaDBStore(t, m)
	at := func(prefix string) *hasp.Client {
		return client(t, sqlkit.With(store, "strategy=getlock", "prefix="+prefix))
	}
	broken(t, m, "below_", "GREATEST(v_ceiling + 1, ", "GREATEST(1, ")
	broken(t, m, "blind_", "SELECT base INTO @blind_seen FROM", "SELECT 0 INTO @blind_seen FROM")
	db := func(text string) {
		t.Helper()
		sqlkit.Exec(t, sqlkit.MySQL(t, m.Addr, m.User, m.Password, "locks"), text)
	}
	prefixes := []string{"right_", "below_", "blind_"}
	clients, last := map[string]*hasp.Client{}, map[string]uint64{}
	for _, p := range prefixes {
		clients[p] = at(p)
		testkit.Drawn(t, clients[p], "a")
		// So a server has left it whose clock was an hour ahead.
		db("UPDATE " + p + "store SET ceiling = ceiling + 3600000000, base = base + 3600000000, most = most + 3600000000")
		last[p] = testkit.Drawn(t, clients[p], "a")
	}
	if err := m.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := m.Restart(); err != nil {
		t.Fatal(err)
	}
	grew := func(p string, c *hasp.Client) bool {
		next := testkit.Drawn(t, c, "a")
		was := last[p]
		last[p] = next
		return next > was
	}
	if !grew("right_", clients["right_"]) {
		t.Error("the token fell")
	}
	if grew("below_", clients["below_"]) {
		t.Error("not caught: a server that begins at its clock alone")
	}
	// As if the server had been started in the second in which it was before, and counted the same
	// numbers.
	for _, p := range []string{"right_", "blind_"} {
		testkit.Drawn(t, at(p), "b")
		again := "UPDATE " + p + "store SET ceiling = most, origin = UUID_SHORT() - 1"
		db(again)
		last[p] = testkit.Drawn(t, at(p), "c")
		db(again)
		if grew(p, at(p)) != (p == "right_") {
			t.Errorf("%s: the token is %d", p, last[p])
		}
	}
}

// The tables are dropped and made again, under connections that stay.
func TestTokensOverDrop(t *testing.T) {
	t.Parallel()
	m := backends.SharedMariaDB(t)
	base := sqlkit.With(sqlkit.MariaDBStore(t, m), "strategy=getlock", "prefix=lost_tokens_")
	db := sqlkit.MySQL(t, m.Addr, m.User, m.Password, "locks")
	old := client(t, base)
	last := testkit.Drawn(t, old, "a")
	for range 8 { // each begins a block, and the clock moves by less than the test takes
		last = testkit.Drawn(t, client(t, base), "a")
	}
	for _, table := range []string{"schema", "store", "entries", "sessions", "names", "bound", "evictions"} {
		sqlkit.Exec(t, db, "DROP TABLE lost_tokens_"+table)
	}
	testkit.TokensRise(t, last, "a", client(t, base), old, client(t, base))
}

// Tokens grow with the grants while clients raise the ceiling all the time: a block has three of
// them here.
func TestTokensGrowWhileRaised(t *testing.T) {
	t.Parallel()
	m := backends.StartMariaDB(t, backends.MariaDBOptions{Config: []string{"innodb_flush_log_at_trx_commit=0"}})
	sqlkit.MariaDBStore(t, m)
	broken(t, m, "small_", "LEAST(262143, IF", "LEAST(2, IF")
	base := sqlkit.With(sqlkit.MariaDBStore(t, m), "strategy=getlock", "prefix=small_")
	testkit.TokensGrow(t, func() *hasp.Client { return client(t, base) })
}

// A server that is read-only, a replica for one, grants nothing, though a token would write
// nothing.
func TestReadOnlyGrantsNothing(t *testing.T) {
	t.Parallel()
	m := backends.StartMariaDB(t, backends.MariaDBOptions{})
	base := sqlkit.With(sqlkit.MariaDBStore(t, m), "strategy=getlock")
	db := sqlkit.MariaDBAdmin(t, m)
	testkit.Drawn(t, client(t, base), "a")
	sqlkit.Exec(t, db, "CREATE USER plain@'%' IDENTIFIED BY 'plain'")
	sqlkit.Exec(t, db, "GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON locks.* TO plain@'%'")
	c := client(t, strings.Replace(base, "hasp:hasp@", "plain:plain@", 1))
	testkit.Drawn(t, c, "a")
	sqlkit.Exec(t, db, "SET GLOBAL read_only = 1")
	if l, err := c.Mutex("a").TryLock(ctx(t)); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("%v, %v", l, err)
	}
	sqlkit.Exec(t, db, "SET GLOBAL read_only = 0")
	testkit.Drawn(t, c, "a")
}

// An acquisition that waits is two statements, as one that does not; and one that waits for longer
// than ten seconds asks again.
func TestGetLockContendedCosts(t *testing.T) {
	t.Parallel()
	m := backends.StartMariaDB(t, backends.MariaDBOptions{})
	count, base := counted(t, m)
	base = sqlkit.With(base, "strategy=getlock")
	var clients []*hasp.Client
	for i := range 8 {
		c := client(t, base, hasp.WithTTL(time.Hour))
		testkit.Drawn(t, c, fmt.Sprint("warm-", i))
		clients = append(clients, c)
	}
	count.mu.Lock()
	before := count.all
	clear(count.texts)
	count.mu.Unlock()
	const rounds = 20
	began := time.Now()
	var wg sync.WaitGroup
	for _, c := range clients {
		wg.Go(func() {
			for range rounds {
				if err := c.Do(context.Background(), "a", func(context.Context) error { return nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	count.mu.Lock()
	defer count.mu.Unlock()
	got := int64(0)
	for _, n := range count.texts {
		got += int64(n)
	}
	const n = 8 * rounds
	// Each client finds out that the name is taken, and tries whether it is free again when it was
	// so eight times.
	if most := 2*n + 8 + n/8 + 8*int64(time.Since(began)/(10*time.Second)); got > most || count.all-before < 2*n {
		t.Errorf("%d statements for %d acquisitions, want %d at most: %v", got, n, most, count.texts)
	}
}

// A waiter that gives up ends its statement at the server, and what was granted to it at that
// moment.
func TestPendingRequestEnds(t *testing.T) {
	t.Parallel()
	m := backends.StartMariaDB(t, backends.MariaDBOptions{})
	base := sqlkit.With(sqlkit.MariaDBStore(t, m), "strategy=getlock")
	db := sqlkit.MariaDBAdmin(t, m)
	waits := func() int64 {
		return number(t, db, "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock'")
	}
	s := queuer(t, base)
	first := enqueue(t, s, "a", true)
	second := enqueue(t, s, "a", false) // whose Wait is not called
	testkit.Eventually(t, "the request waits", func() bool { return waits() == 1 })
	if err := second.Leave(ctx(t)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "it has ended", func() bool { return waits() == 0 })

	third := enqueue(t, s, "a", false)
	if err := first.Leave(ctx(t)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "it was granted", func() bool { return waits() == 0 })
	if err := third.Leave(ctx(t)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the next holds", func() bool {
		l, err := client(t, base).Mutex("a").TryLock(ctx(t))
		if err != nil && !errors.Is(err, hasp.ErrBusy) {
			t.Error(err)
		}
		return err == nil && l.Held()
	})
}

// The statement of a waiter is killed: it asks again.
func TestPendingRequestIsKilled(t *testing.T) {
	t.Parallel()
	m := backends.StartMariaDB(t, backends.MariaDBOptions{})
	base := sqlkit.With(sqlkit.MariaDBStore(t, m), "strategy=getlock")
	db := sqlkit.MariaDBAdmin(t, m)
	l := testkit.Lock(t, client(t, base), "a")
	next := testkit.Locking(t, client(t, base), "a")
	waiting := "SELECT COALESCE(MAX(id), 0) FROM information_schema.processlist WHERE state = 'User lock'"
	var ids []int64
	for len(ids) < 3 {
		var id int64
		testkit.Eventually(t, "a statement that waits", func() bool {
			id = number(t, db, waiting)
			return id != 0 && !slices.Contains(ids, id)
		})
		sqlkit.Exec(t, db, fmt.Sprint("KILL QUERY ", id))
		ids = append(ids, id)
	}
	testkit.Release(t, l)
	testkit.Release(t, <-next)
}

// The record of a holder arrives when the lock has been given on: it does not take the place of the
// next holder's.
func TestLateNote(t *testing.T) {
	t.Parallel()
	m := backends.SharedMariaDB(t)
	base := sqlkit.With(sqlkit.MariaDBStore(t, m), "strategy=getlock", "prefix=note_")
	onlooker := client(t, base)
	check := func(l *hasp.Lease) error {
		q, err := onlooker.Inspect(ctx(t), "a")
		if err != nil || len(q.Holders) != 1 || q.Holders[0].ID != l.ID() || q.Holders[0].Token != l.Token() {
			return fmt.Errorf("inspected: %+v, %v; want %s with %d", q, err, l.ID(), l.Token())
		}
		return nil
	}
	first := testkit.Lock(t, client(t, base), "a")
	testkit.Until(t, "the first one's record", func() error { return check(first) })
	testkit.Release(t, first)
	second := testkit.Lock(t, client(t, base), "a")
	testkit.Until(t, "the second one's record", func() error { return check(second) })
	db := sqlkit.MySQL(t, m.Addr, m.User, m.Password, "locks")
	connection := number(t, db, "SELECT connection FROM note_bound WHERE name = 'a'")
	sqlkit.Exec(t, db, fmt.Sprintf("CALL note_note_2('a', %d, 'late', %d, 0, '', '')", first.Token(), connection))
	if err := check(second); err != nil {
		t.Error(err)
	}
}

// The record of a holder fails: it is made later, and an operator who asks is told who holds.
func TestFailedNoteIsRepeated(t *testing.T) {
	t.Parallel()
	m := backends.SharedMariaDB(t)
	base := sqlkit.With(sqlkit.MariaDBStore(t, m), "strategy=getlock", "prefix=failed_")
	onlooker := client(t, base)
	testkit.Release(t, testkit.Lock(t, onlooker, "a"))
	db := sqlkit.MySQL(t, m.Addr, m.User, m.Password, "locks")
	sqlkit.Exec(t, db, "RENAME TABLE failed_bound TO failed_away")
	l := testkit.Lock(t, client(t, base), "a")
	time.Sleep(300 * time.Millisecond) // the record is tried after 20 ms
	sqlkit.Exec(t, db, "RENAME TABLE failed_away TO failed_bound")
	testkit.Until(t, "the record", func() error {
		q, err := onlooker.Inspect(ctx(t), "a")
		if err != nil || len(q.Holders) != 1 || q.Holders[0].ID != l.ID() {
			return fmt.Errorf("inspected: %+v, %v; want %s", q, err, l.ID())
		}
		return nil
	})
	testkit.Release(t, l)
}
