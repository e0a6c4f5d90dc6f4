package mysqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/mysqllock"
)

// proxied leads to the shared server through a separate network.
func proxied(t *testing.T) (*faultnet.Proxy, string) {
	t.Helper()
	m := backends.SharedMariaDB(t)
	p := testkit.Proxy(t, m.Addr)
	return p, through(sqlkit.MariaDBStore(t, m), p.Addr())
}

// Closing a client is no failure because its idle connections have broken: they are closed.
func TestCloseAfterReset(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{"table", "getlock"} {
		p, base := proxied(t)
		c := client(t, sqlkit.With(base, "strategy="+strategy), hasp.WithTTL(calm))
		testkit.Release(t, testkit.Lock(t, c, "reset-"+strategy))
		p.Reset()
		if err := c.Close(); err != nil {
			t.Errorf("%s: %v", strategy, err)
		}
	}
}

// The holder's connection is killed. With hasp's own connections it is told at once, though
// the next renewal is an hour away. The control is a pool of the user's, on which only
// renewals look.
func TestKillIsNoticed(t *testing.T) {
	t.Parallel()
	m := backends.SharedMariaDB(t)
	base := sqlkit.MariaDBStore(t, m)
	db := sqlkit.MariaDBAdmin(t, m)
	kill := func(c *hasp.Client, name string) *hasp.Lease {
		l := testkit.Lock(t, c, name)
		q, err := c.Inspect(ctx(t), name)
		if err != nil || len(q.Holders) != 1 {
			t.Fatalf("inspected: %+v, %v", q, err)
		}
		sqlkit.Exec(t, db, fmt.Sprint("KILL CONNECTION ", noted(t, db, l)))
		return l
	}
	// told reports whether the control was told before its session was renewed, which is no sooner
	// than four seconds after it began. A try that took longer says nothing.
	told := func() (told, tested bool) {
		b, err := mysqllock.New(sqlkit.MySQL(t, m.Addr, m.User, m.Password, "locks"), &mysqllock.Options{Strategy: mysqllock.StrategyGetLock})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		c := testkit.ClientOn(t, b, hasp.WithTTL(time.Hour))
		l := kill(c, "deaf")
		time.Sleep(200 * time.Millisecond)
		told = !l.Held()
		tested = !told || time.Since(began) < 3*time.Second
		if err := l.Release(ctx(t)); err == nil {
			t.Error("released a lock that had been lost")
		}
		return told, tested
	}
	l := kill(client(t, sqlkit.With(base, "strategy=getlock"), hasp.WithTTL(time.Hour)), "kill-getlock")
	select {
	case <-l.Context().Done():
	case <-time.After(slack):
		t.Error("the holder was never told")
	}
	early, tested := told()
	for range 2 {
		if !tested {
			early, tested = told()
		}
	}
	if early {
		t.Error("told without a reader on the connection: this test cannot fail")
	}
}

// A lock whose connection has ended gives back its place in the pool: the client could make no
// other when it had lost as many locks as it may have connections.
func TestLostConnectionsAreGivenBack(t *testing.T) {
	t.Parallel()
	m := backends.SharedMariaDB(t)
	base, db := sqlkit.MariaDBStore(t, m), sqlkit.MariaDBAdmin(t, m)
	c := client(t, sqlkit.With(base, "strategy=getlock", "connections=1"), hasp.WithTTL(time.Hour))
	for i := range 3 {
		name := fmt.Sprint("killed-", i)
		l := testkit.Lock(t, c, name)
		if q, err := c.Inspect(ctx(t), name); err != nil || len(q.Holders) != 1 {
			t.Fatalf("inspected: %+v, %v", q, err)
		}
		sqlkit.Exec(t, db, fmt.Sprint("KILL CONNECTION ", noted(t, db, l)))
		testkit.Lost(t, l, hasp.ReasonDenied)
	}
	testkit.Release(t, testkit.Lock(t, c, "after-killed"))
}

// A client is closed while its server is silent. It gives all of its locks up, and not only that to
// which the server has not answered in time: the others stayed taken for as long as the process
// lived.
func TestCloseWhileSilent(t *testing.T) {
	t.Parallel()
	p, u := proxied(t)
	c := client(t, sqlkit.With(u, "strategy=getlock"))
	names := []string{"silent-1", "silent-2", "silent-3"}
	for _, name := range names {
		testkit.Lock(t, c, name)
	}
	p.Partition()
	_ = c.Close() // it has no answer
	p.Heal()
	other := client(t, sqlkit.With(sqlkit.MariaDBStore(t, backends.SharedMariaDB(t)), "strategy=getlock"))
	for _, name := range names {
		testkit.Release(t, testkit.Lock(t, other, name))
	}
}

// The server commits, and its answer is lost.
func TestAnswerLost(t *testing.T) {
	t.Parallel()
	p, u := proxied(t)
	c, direct := client(t, u), client(t, sqlkit.MariaDBStore(t, backends.SharedMariaDB(t)))
	testkit.Release(t, testkit.Lock(t, c, "warm-up"))
	lose := func(what string) {
		cut := p.Lose(faultnet.Down, 1, faultnet.Contains(what))
		t.Cleanup(func() {
			select {
			case <-cut:
			default:
				t.Errorf("no answer of %s was lost", what)
			}
		})
	}
	lose("enter_2")
	l := testkit.Lock(t, c, "lost-enter")
	if q, err := direct.Inspect(ctx(t), "lost-enter"); err != nil || len(q.Holders)+len(q.Waiters) != 1 || q.Holders[0].ID != l.ID() {
		t.Errorf("after a lost answer: %+v, %v; want one holder, ours", q, err)
	}
	outlasts(t, func(ttl time.Duration) *hasp.Lease {
		lose("renew_2")
		return testkit.Lock(t, client(t, u, hasp.WithTTL(ttl)), fmt.Sprint("lost-renew-", ttl))
	})
	lose("SET state = 0")
	testkit.Release(t, l)
	testkit.Release(t, testkit.Lock(t, direct, "lost-enter"))
	testkit.Release(t, testkit.Lock(t, c, "lost-enter")) // not contended any more
	lose("state = 1, h_id")
	l = testkit.Lock(t, c, "lost-enter")
	// A waiter moves it to the others.
	next := testkit.Locking(t, direct, "lost-enter")
	testkit.Eventually(t, "a waiter", func() bool {
		q, err := direct.Inspect(ctx(t), "lost-enter")
		return err == nil && len(q.Waiters) == 1
	})
	lose("leave_2")
	testkit.Release(t, l)
	testkit.Release(t, <-next)
}

// The control of TestAnswerLost: a client that asks again under another id is blocked by its first
// entry.
func TestAnswerLostControl(t *testing.T) {
	t.Parallel()
	p, u := proxied(t)
	b := testkit.Open(t, u)
	defer b.Close()
	s, _, err := b.Open(ctx(t), driver.SessionOptions{TTL: calm, Gone: func(string, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	p.Lose(faultnet.Down, 1, faultnet.Contains("enter_2"))
	if _, err := s.Ticket(request("twice", "first")).Enqueue(ctx(t)); err == nil {
		t.Fatal("the answer was not lost")
	}
	if v, err := s.Ticket(request("twice", "second")).Enqueue(ctx(t)); err != nil || v.Held {
		t.Fatalf("another id: %+v, %v; want it to wait", v, err)
	}
	if list, err := b.List(ctx(t), "twice", 0); err != nil || len(list) != 2 {
		t.Errorf("%d entries, %v; want two", len(list), err)
	}
}

func request(name, id string) driver.Request {
	return driver.Request{Name: name, ID: id, Units: driver.Whole, Capacity: driver.Whole, Owner: "{}", Since: time.Now()}
}

// A request to enter is held up by the network, its ticket leaves, and then the request
// arrives: its entry goes with the next renewal, though the session lives on.
func TestLateEnqueue(t *testing.T) {
	t.Parallel()
	p, u := proxied(t)
	b := testkit.Open(t, sqlkit.With(u, "prefix=late_"))
	defer b.Close()
	s, _, err := b.Open(ctx(t), driver.SessionOptions{TTL: 4 * slack, Gone: func(string, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	db := sqlkit.MariaDBAdmin(t, backends.SharedMariaDB(t))
	ticket := s.Ticket(request("late", "late-1"))
	p.Lose(faultnet.Up, 1, faultnet.Contains("enter_2"))
	if _, err := ticket.Enqueue(ctx(t)); err == nil {
		t.Fatal("the request was not held up")
	}
	if err := ticket.Leave(ctx(t)); !errors.Is(err, driver.ErrGone) {
		t.Fatalf("leave: %v", err)
	}
	// The network had kept this.
	sqlkit.Exec(t, db, "CALL locks.late_enter_2(3, 'late', 'late-1', (SELECT id FROM locks.late_sessions), 1, 1, 0, '', '')")
	if list, err := b.List(ctx(t), "late", 0); err != nil || len(list) != 1 {
		t.Fatalf("%+v, %v: the request did not come late, and nothing is tested", list, err)
	}
	if _, err := s.KeepAlive(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if list, err := b.List(ctx(t), "late", 0); err != nil || len(list) != 0 {
		t.Errorf("an entry of a ticket that left: %+v, %v", list, err)
	}

	// The same with the UPDATE by which a name that the client had alone before is locked.
	if err := enqueue(t, s, "late", true).Leave(ctx(t)); err != nil {
		t.Fatal(err)
	}
	ticket = s.Ticket(request("late", "late-2"))
	p.Lose(faultnet.Up, 1, faultnet.Contains("state = 1"))
	if _, err := ticket.Enqueue(ctx(t)); err == nil {
		t.Fatal("the request was not held up")
	}
	if err := ticket.Leave(ctx(t)); !errors.Is(err, driver.ErrGone) {
		t.Fatalf("leave: %v", err)
	}
	sqlkit.Exec(t, db, "UPDATE locks.late_names SET seq = seq + 1, state = 1, h_id = 'late-2', h_session = (SELECT id FROM locks.late_sessions), h_units = 1, h_capacity = 1 WHERE name = 'late' AND state = 0")
	if list, err := b.List(ctx(t), "late", 0); err != nil || len(list) != 1 {
		t.Fatalf("%+v, %v: the request did not come late, and nothing is tested", list, err)
	}
	if _, err := s.KeepAlive(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if list, err := b.List(ctx(t), "late", 0); err != nil || len(list) != 0 {
		t.Errorf("an entry of a ticket that left, in the row: %+v, %v", list, err)
	}
}

// A holder is cut off: its lease ends by itself before another has the lock, and what the
// network delivers later changes nothing. The control does not look at its deadline.
func TestPartition(t *testing.T) {
	t.Parallel()
	p, u := proxied(t)
	c, other := client(t, u, hasp.WithTTL(T)), client(t, sqlkit.MariaDBStore(t, backends.SharedMariaDB(t)))
	l := testkit.LockDespiteErrors(t, c, "cut-off") // its TTL is short, and a renewal may have come too late
	next := testkit.Locking(t, other, "cut-off")
	naive := byHand(t, sqlkit.MariaDBAt(t, p.Addr(), "locks"), "cut-off")
	p.Partition()
	got := <-next
	if got == nil {
		t.Fatal("no client got the lock of a holder that was cut off")
	}
	if l.Held() {
		t.Error("held, and another holds too")
	}
	if byHand(t, sqlkit.MariaDBAt(t, backends.SharedMariaDB(t).Addr, "locks"), "cut-off"); !naive.Held() {
		t.Error("the control knew of its loss: this has tested nothing")
	}
	p.Heal()
	time.Sleep(T / 2)
	if l.Held() || !got.Held() || got.Token() <= l.Token() {
		t.Errorf("after the network healed: the first held %t with token %d, the second held %t with token %d", l.Held(), l.Token(), got.Held(), got.Token())
	}
	if q, err := other.Inspect(ctx(t), "cut-off"); err != nil || len(q.Holders) != 1 || len(q.Waiters) != 0 {
		t.Errorf("inspected: %+v, %v", q, err)
	}
	testkit.Release(t, got)
	again := testkit.LockDespiteErrors(t, c, "cut-off")
	if err := again.Release(ctx(t)); err != nil && !errors.Is(err, hasp.ErrLost) { // its TTL is short, and the machine may be busy
		t.Error(err)
	}
}

// The tables are dropped under a holder: it is told at its next renewal, and the next
// acquisition makes them anew. The control does not look at what its renewals answer.
func TestTableDropped(t *testing.T) {
	t.Parallel()
	m := backends.SharedMariaDB(t)
	sqlkit.Exec(t, sqlkit.MariaDBAdmin(t, m), "CREATE DATABASE IF NOT EXISTS dropped")
	naive := byHand(t, sqlkit.MariaDBAt(t, m.Addr, "dropped"), "a")
	sqlkit.Exec(t, sqlkit.MariaDBAdmin(t, m), "DROP TABLE dropped.by_hand")
	base := sqlkit.With(sqlkit.MariaDBStore(t, m), "prefix=dropped_")
	for range 2 {
		c := client(t, base, hasp.WithTTL(calm))
		l := testkit.Lock(t, c, "a")
		db := sqlkit.MariaDBAdmin(t, m)
		for _, table := range strings.Fields("entries sessions names bound evictions store schema") { // those that are there beside lost ones are refused
			sqlkit.Exec(t, db, "DROP TABLE locks.dropped_"+table)
		}
		select {
		case <-l.Context().Done():
		case <-time.After(slack):
			t.Fatal("the holder was never told")
		}
		var lost *hasp.LostError
		if !errors.As(l.Err(), &lost) || lost.Reason == hasp.ReasonExpired {
			t.Errorf("lost: %v; want that the store said it", l.Err())
		}
		next := testkit.Lock(t, c, "a")
		if next.Token() <= l.Token() {
			t.Errorf("token %d after %d", next.Token(), l.Token())
		}
		testkit.Release(t, next)
	}
	// By now it has renewed without success, as often as those above.
	if byHand(t, sqlkit.MariaDBAt(t, m.Addr, "dropped"), "a"); !naive.Held() {
		t.Error("the control knew of its loss: this has tested nothing")
	}
}

// max_connections is reached: who comes new is refused and told why, and who holds goes on.
func TestMaxConnections(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	var l *hasp.Lease
	outlasts(t, func(ttl time.Duration) *hasp.Lease {
		m := backends.StartMariaDB(t, backends.MariaDBOptions{Config: []string{"max_connections=20"}})
		base := sqlkit.MariaDBStore(t, m)
		l = testkit.Lock(t, client(t, base, hasp.WithTTL(ttl)), "held")
		hog := sqlkit.MySQL(t, m.Addr, m.User, m.Password, "locks")
		hog.SetMaxIdleConns(100)
		// The server may still count a connection that the client has closed, and free it after the
		// hog was refused.
		testkit.Until(t, "all connections are taken", func() error {
			for range 30 {
				conn, err := hog.Conn(context.Background())
				if err != nil {
					break
				}
				t.Cleanup(func() { conn.Close() })
			}
			c, err := hasp.Open(ctx(t), base)
			if err == nil {
				c.Close()
				return errors.New("opened where no connection is left")
			}
			if !strings.Contains(err.Error(), "max_connections") {
				t.Errorf("opened where no connection is left: %v", err)
			}
			return nil
		})
		return l
	})
	testkit.Release(t, l)
}

// The user's pool is used up by the user's own work: the lock is renewed all the same. The
// control renews through the pool.
func TestPoolExhausted(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	m := backends.SharedMariaDB(t)
	base := sqlkit.MariaDBStore(t, m)
	var l *hasp.Lease
	var hogs []*sql.Conn
	outlasts(t, func(ttl time.Duration) *hasp.Lease {
		db := sqlkit.MariaDBAt(t, m.Addr, "locks")
		db.SetMaxOpenConns(3)
		b, err := mysqllock.New(db, nil)
		if err != nil {
			t.Fatal(err)
		}
		c, name := testkit.ClientOn(t, b, hasp.WithTTL(ttl)), fmt.Sprint("exhausted-", ttl)
		l, hogs = testkit.Lock(t, c, name), nil
		naive := byHand(t, db, name)
		for range 2 {
			conn, err := db.Conn(ctx(t))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			hogs = append(hogs, conn)
		}
		short, cancel := context.WithTimeout(ctx(t), T/4)
		defer cancel()
		if _, err := c.Mutex("other").Lock(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("locked with no connection left: %v: this has tested nothing", err)
		}
		if byHand(t, sqlkit.MariaDBAt(t, m.Addr, "locks"), name); !naive.Held() {
			t.Error("the control knew of its loss: this has tested nothing")
		}
		return l
	}) // now only a renewal can have kept it
	if _, err := client(t, base).Mutex(l.Name()).TryLock(ctx(t)); !l.Held() || !errors.Is(err, hasp.ErrBusy) {
		t.Errorf("held %t (%v), and another's try: %v", l.Held(), l.Err(), err)
	}
	for _, h := range hogs {
		h.Close()
	}
	testkit.Release(t, l)
}

// wait_timeout closes what is silent for a second: no client loses a lock by it. The control is
// a connection with a lock and with the server's settings.
func TestLowWaitTimeout(t *testing.T) {
	t.Parallel()
	m := backends.StartMariaDB(t, backends.MariaDBOptions{})
	base := sqlkit.MariaDBStore(t, m)
	// To make the tables takes many statements on one connection, and a busy machine may pause for
	// a second between two of them. Those that follow are tried again.
	testkit.Drawn(t, client(t, base), "warm-up")
	sqlkit.Exec(t, sqlkit.MariaDBAdmin(t, m), "SET GLOBAL wait_timeout = 1")
	held := map[string]*hasp.Lease{}
	for _, strategy := range []string{"table", "getlock"} {
		held[strategy] = testkit.LockDespiteErrors(t, client(t, sqlkit.With(base, "strategy="+strategy), hasp.WithTTL(calm)), "silent") // renews every 4 s
	}
	sqlkit.NaiveGetLock(ctx(t), t, sqlkit.MariaDBAt(t, m.Addr, "locks"), "silent")
	time.Sleep(calm / 2)
	for strategy, l := range held {
		other := client(t, sqlkit.With(base, "strategy="+strategy)).Mutex("silent")
		_, err := other.TryLock(ctx(t))
		for try := 1; try < 3 && err != nil && !errors.Is(err, hasp.ErrBusy); try++ {
			_, err = other.TryLock(ctx(t))
		}
		if !l.Held() || !errors.Is(err, hasp.ErrBusy) {
			t.Errorf("%s: held %t (%v), and another's try: %v", strategy, l.Held(), l.Err(), err)
		}
		testkit.Release(t, l)
	}
	sqlkit.NaiveGetLock(ctx(t), t, sqlkit.MariaDBAt(t, m.Addr, "locks"), "silent") // the first still believes that it is its own
}

// ownTables makes tables with a prefix, for a client and for what a test does to them.
func ownTables(t *testing.T, prefix string) (*hasp.Client, *sql.DB) {
	t.Helper()
	m := backends.SharedMariaDB(t)
	c := client(t, sqlkit.With(sqlkit.MariaDBStore(t, m), "prefix="+prefix))
	testkit.Release(t, testkit.Lock(t, c, "warm-up"))
	return c, sqlkit.MySQL(t, m.Addr, m.User, m.Password, "locks")
}

// L4: dead sessions keep no client out, however many they are. A request removes some of them, and
// a try, which does not come back, goes on until none are left. (It said that a lock was taken
// whose holder had expired, with sixteen others before it.)
func TestTryPassesManyDead(t *testing.T) {
	t.Parallel()
	c, db := ownTables(t, "many_")
	die := func(most int) {
		for i := range most {
			sqlkit.Exec(t, db, fmt.Sprintf("INSERT INTO many_sessions (id, expires) VALUES ('s%d', UTC_TIMESTAMP(6) + INTERVAL 1 DAY)", i))
			sqlkit.Exec(t, db, fmt.Sprintf("CALL many_enter_2(0, 'name-%[1]d', 'id-%[1]d', 's%[1]d', %[2]d, %[2]d, 0, '', '')", i, driver.Whole))
		}
		// The last one died last.
		sqlkit.Exec(t, db, fmt.Sprintf("UPDATE many_sessions SET expires = UTC_TIMESTAMP(6) - INTERVAL %d - CAST(SUBSTRING(id, 2) AS SIGNED) SECOND WHERE id LIKE 's%%' AND LENGTH(id) < 5", most))
	}
	const most = 60
	die(most)
	l, err := c.Mutex(fmt.Sprint("name-", most-1)).TryLock(ctx(t))
	if err != nil {
		t.Fatalf("the holder is dead: %v", err)
	}
	testkit.Release(t, l)
	if n := number(t, db, "SELECT COUNT(*) FROM many_sessions"); n > most-16 {
		t.Errorf("%d sessions of the dead are left", n)
	}
	die(most)
	if l, err = c.Semaphore(fmt.Sprint("name-", most-1), 3).TryAcquire(ctx(t), 1); err != nil {
		t.Fatalf("the holder, of another kind, is dead: %v", err)
	}
	testkit.Release(t, l)
}

// L4: a dead session keeps no client out while another client is removing it that has not come to
// this name yet: a try waits for that. (For up to a second it was told that the lock was taken.)
// Here no client is removing it: the claim is of one that has died as well.
func TestTryBesideRemoval(t *testing.T) {
	t.Parallel()
	c, db := ownTables(t, "removal_")
	die := func(name string) {
		sqlkit.Exec(t, db, fmt.Sprintf("INSERT INTO removal_sessions (id, expires) VALUES ('%s', UTC_TIMESTAMP(6) + INTERVAL 1 DAY)", name))
		sqlkit.Exec(t, db, fmt.Sprintf("CALL removal_enter_2(0, '%[1]s', 'id-%[1]s', '%[1]s', %[2]d, %[2]d, 0, '', '')", name, driver.Whole))
		sqlkit.Exec(t, db, fmt.Sprintf("UPDATE removal_sessions SET expires = '1970-01-01', claimed = UTC_TIMESTAMP(6) WHERE id = '%s'", name))
	}
	die("mutex")
	l, err := c.Mutex("mutex").TryLock(ctx(t))
	if err != nil {
		t.Fatalf("the holder is dead: %v", err)
	}
	testkit.Release(t, l)
	die("semaphore")
	if l, err = c.Semaphore("semaphore", 3).TryAcquire(ctx(t), 1); err != nil {
		t.Fatalf("the holder, of another kind, is dead: %v", err)
	}
	testkit.Release(t, l)
}
