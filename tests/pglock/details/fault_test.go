package pglock_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/naivelock"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/pglock"
)

// S8: the connection is cut between the commit and the answer. The entry is found again,
// with its first token; a release is confirmed by the second attempt. The control asks again
// without knowing itself, and stands in its own way.
func TestAnswerLost(t *testing.T) {
	t.Parallel()
	net, storeURL := testkit.Behind(t, sqlkit.PostgresStore(t))
	c := client(t, storeURL)
	other := client(t, storeURL)
	testkit.Release(t, testkit.Lock(t, c, "lost answer")) // prepares the statements

	cut := net.Lose(faultnet.Down, 1, faultnet.Contains("lost answer"))
	l := testkit.Lock(t, c, "lost answer")
	<-cut
	if q := testkit.Entries(t, other, "lost answer"); len(q) != 1 || q[0].Token != l.Token() {
		t.Errorf("the lease has token %d, and the store %+v", l.Token(), q)
	}
	cut = net.Lose(faultnet.Down, 1, faultnet.Contains("lost answer"))
	testkit.Release(t, l)
	<-cut
	if q := testkit.Entries(t, other, "lost answer"); len(q) != 0 {
		t.Errorf("released, and the store has %+v", q)
	}

	db := sqlPool(t, net.Addr())
	if err := naivelock.Create(testkit.Context(t), db); err != nil {
		t.Fatal(err)
	}
	cut = net.Lose(faultnet.Down, 1, faultnet.Contains("INSERT"))
	short, cancel := context.WithCancel(testkit.Context(t))
	defer cancel()
	go func() {
		<-cut
		time.AfterFunc(T, cancel)
	}()
	if _, err := naivelock.Lock(short, db, "lost answer", calm); !errors.Is(err, context.Canceled) {
		t.Errorf("the control: %v, although the answer was lost", err)
	}
	if n := ask[int](t, storeURLOfPgx(t), "SELECT count(*) FROM by_hand WHERE name = 'lost answer'"); n != 1 {
		t.Errorf("the control has left %d rows behind: this has tested nothing", n)
	}
}

// S5, L2: the network holds everything for longer than a TTL and then delivers it. The
// holder has known in time; what arrives late revives nothing; the next one holds. The
// control does not look at its deadline.
func TestPartition(t *testing.T) {
	t.Parallel()
	direct := sqlkit.PostgresStore(t)
	net, cutOff := testkit.Behind(t, direct)
	l := testkit.Lock(t, client(t, cutOff), "partition")
	next := queued(t, direct, "partition")
	naive := byHand(t, sqlPool(t, net.Addr()), "partition")
	net.Partition()
	got := testkit.Granted(t, next)
	if l.Held() {
		t.Error("two hold")
	}
	testkit.Lost(t, l, hasp.ReasonExpired)
	if byHand(t, sqlPool(t, backends.SharedPostgres(t).Addr), "partition"); !naive.Held() {
		t.Error("the control knew of its loss: this has tested nothing")
	}
	net.Heal()
	lasts(t, got, T)
	if q := testkit.Entries(t, client(t, direct), "partition"); len(q) != 1 || q[0].ID != got.ID() {
		t.Errorf("%s holds, and the store has %+v", got.ID(), q)
	}
	testkit.Release(t, got)
}

// L2: the connection that listens falls silent, and with it the notification. The next
// renewal finds that out, since it uses the same connection; no waiter sleeps for ever.
func TestSilentListener(t *testing.T) {
	t.Parallel()
	direct := sqlkit.PostgresStore(t)
	net, silent := testkit.Behind(t, direct)
	held := testkit.Lock(t, client(t, direct), "silent")
	next := queued(t, silent, "silent")
	net.Set(faultnet.Down, faultnet.Rule{Mode: faultnet.Drop})
	testkit.Release(t, held)
	// The control: while the network is silent, it is the notification that is missing.
	select {
	case <-next:
		t.Error("granted through a silent network")
	case <-time.After(T / 4):
	}
	net.Heal() // cuts what lost bytes: from here on dialling works
	testkit.Release(t, testkit.Granted(t, next))
}

// S6: the pool is exhausted by its other users. Acquiring waits for its context; what is
// held is renewed on a separate connection.
func TestPoolExhausted(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	cfg, err := pgxpool.ParseConfig(storeURLOfPgx(t))
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	b, err := pglock.New(t.Context(), pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := testkit.ClientOn(t, b, hasp.WithTTL(calm))
	l := testkit.Lock(t, c, "exhausted")
	taken, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// The control: a renewal through the pool would wait without end.
	short, cancel := context.WithTimeout(t.Context(), T/4)
	defer cancel()
	if _, err := pool.Acquire(short); err == nil {
		t.Fatal("the pool is not exhausted")
	}
	lasts(t, l, calm)
	short, cancel = context.WithTimeout(t.Context(), T/4)
	defer cancel()
	if _, err := c.Mutex("another").Lock(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with the pool exhausted: %v", err)
	}
	taken.Release()
	testkit.Release(t, l)
}

// L3: max_connections is reached. New clients are told so; those who hold go on, because
// renewals do not need a new connection.
func TestMaxConnections(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	server := private(t, "max_connections = 20")
	sqlkit.Postgres(t, server.URL(), "CREATE ROLE crowd LOGIN")
	c := client(t, server.URL())
	l := testkit.Lock(t, c, "crowded")
	fill := func() {
		for range 25 {
			conn, err := pgx.Connect(t.Context(), as(server.URL(), "crowd"))
			if err != nil {
				return
			}
			t.Cleanup(func() { conn.Close(context.Background()) })
		}
		t.Fatal("the server is not full")
	}
	refused := false
	for i := 0; i < 5 && !refused; i++ { // an earlier connection of this test may end after the server was filled
		fill()
		another, err := hasp.Open(t.Context(), as(server.URL(), "crowd"))
		if refused = err != nil; !refused {
			another.Close()
		}
	}
	if !refused {
		t.Error("a full server let another client in")
	}
	lasts(t, l, calm)
	testkit.Release(t, l)
}

// Time-outs that an administrator has set low for a role concern neither waiters nor
// renewals: our own connections switch them off.
func TestLowTimeouts(t *testing.T) {
	t.Parallel()
	server := private(t)
	sqlkit.Postgres(t, server.URL(), "CREATE ROLE hasty LOGIN SUPERUSER; ALTER ROLE hasty SET statement_timeout = '1s'; ALTER ROLE hasty SET idle_session_timeout = '1s'; ALTER ROLE hasty SET lock_timeout = '1s'; ALTER ROLE hasty SET idle_in_transaction_session_timeout = '1s'")
	// The control: they do work.
	conn, err := pgx.Connect(t.Context(), as(server.URL(), "hasty"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "SELECT pg_sleep(5)"); err == nil {
		t.Error("statement_timeout has no effect")
	}
	conn.Close(context.Background())
	for _, strategy := range []string{"table", "advisory"} {
		storeURL := sqlkit.With(as(server.URL(), "hasty"), "strategy="+strategy)
		// Those time-outs may end a connection that is being made.
		held := testkit.LockDespiteErrors(t, client(t, storeURL), strategy)
		next := testkit.Waiting(t, strategy, func(seen hasp.Option) *hasp.Client {
			c := client(t, storeURL, seen)
			testkit.Release(t, testkit.LockDespiteErrors(t, c, strategy+", first use"))
			return c
		})
		time.Sleep(1500 * time.Millisecond) // longer than all of them
		if !held.Held() {
			t.Errorf("%s: %v", strategy, held.Err())
		}
		testkit.Release(t, held)
		testkit.Release(t, testkit.Granted(t, next))
	}
}

// A database whose default is SERIALIZABLE fails transactions that READ COMMITTED lets
// through. Over a *sql.DB or a user's pool that default is in force: such a failure
// changes nothing, and is asked again.
func TestSerializable(t *testing.T) {
	t.Parallel()
	server := private(t)
	sqlkit.Postgres(t, server.URL(), "ALTER DATABASE postgres SET default_transaction_isolation = 'serializable'")
	const workers, times = 4, 10
	counter, done := 0, make(chan error, workers)
	for range workers {
		pool, err := pgxpool.New(t.Context(), server.URL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		b, err := pglock.New(t.Context(), pool, nil)
		if err != nil {
			t.Fatal(err)
		}
		c := testkit.ClientOn(t, b)
		go func() {
			var err error
			for i := 0; i < times && err == nil; i++ {
				err = c.Do(testkit.Context(t), "serial", func(context.Context) error { counter++; return nil })
			}
			done <- err
		}()
	}
	for range workers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if counter != workers*times {
		t.Errorf("counted to %d, want %d", counter, workers*times)
	}
}

// smallDisk is a directory of the server's on a file system that is soon full.
func smallDisk(t *testing.T) (ts string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "hasp-disk") // not below t.TempDir, which the server's account cannot enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=6m,mode=777", "tmpfs", dir).CombinedOutput(); err != nil {
		t.Skipf("a small file system cannot be mounted here: %s", out)
	}
	// Runs before the removal above. Lazily: the server still has files open there.
	t.Cleanup(func() {
		if out, err := exec.Command("umount", "-l", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %s", out)
		}
	})
	ts = dir + "/tablespace"
	if out, err := exec.Command("install", "-d", "-o", "postgres", ts).CombinedOutput(); err != nil {
		t.Skipf("no account postgres: %s", out)
	}
	return ts
}

// The disk is full: nothing new is acquired, and the error says why at once; what is held
// is renewed and can be released.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("a small file system needs root")
	}
	server := private(t)
	ts := smallDisk(t)
	sqlkit.Postgres(t, server.URL(), "CREATE TABLESPACE small LOCATION '"+ts+"'")
	sqlkit.Postgres(t, server.URL(), "CREATE SCHEMA full_disk; ALTER DATABASE postgres SET default_tablespace = small")
	storeURL := sqlkit.With(server.URL(), "schema=full_disk")
	c := client(t, storeURL, hasp.WithTTL(calm))
	l := testkit.Lock(t, c, "kept")
	// In the entries. The other one will be in its name's row, from where a renewal has no page to
	// move it to.
	other, late := client(t, storeURL), client(t, storeURL, hasp.WithTTL(calm))
	testkit.Release(t, testkit.Lock(t, late, "in its row"))
	found(t, other, "kept")
	session := ask[string](t, server.URL(), "SELECT session FROM full_disk.hasp_entries WHERE name = 'kept'")
	sqlkit.Postgres(t, server.URL(), "CREATE TABLE filler (text text)")
	conn, err := pgx.Connect(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, rows := range []int{2000, 100, 1} { // in smaller and smaller steps, to the last page
		for err = nil; err == nil; {
			_, err = conn.Exec(t.Context(), "INSERT INTO filler SELECT repeat(md5(i::text), 60) FROM generate_series(1, $1) i", rows)
		}
	}
	for err = nil; err == nil; { // the room that the entries' pages still have
		_, err = conn.Exec(t.Context(), `INSERT INTO full_disk.hasp_entries (name, seq, session, id, units, capacity, owner, since, value)
			SELECT 'filler', coalesce(max(seq), 0) + 1, '', coalesce(max(seq), 0) + 1, 1, 1, '', 0, '' FROM full_disk.hasp_entries WHERE name = 'filler'`)
	}
	inRow := testkit.Lock(t, late, "in its row")
	full := time.Now()
	// New names fill the pages that the tables still have, and then there is no other. They are
	// another client's, whose renewals have to move them.
	refused := error(nil)
	for i := 0; i < 3000 && refused == nil; i++ {
		ctx, cancel := context.WithTimeout(t.Context(), slack)
		_, refused = other.Mutex("new/" + time.Duration(i).String()).Lock(ctx)
		cancel()
	}
	if !errors.Is(refused, driver.ErrRefused) {
		t.Errorf("with the disk full: %v", refused)
	}
	testkit.Eventually(t, "a renewal on the full disk", func() bool {
		return ask[int64](t, server.URL(), "SELECT expires FROM full_disk.hasp_sessions WHERE id = $1", session) > full.Add(calm).UnixMicro()
	})
	until := func() int64 {
		return ask[int64](t, server.URL(), "SELECT coalesce(max(h_until), 0) FROM full_disk.hasp_names WHERE name = 'in its row' AND h_id <> ''")
	}
	testkit.Eventually(t, "the row holder's renewal on the full disk", func() bool { return until() > full.Add(calm).UnixMicro() })
	lasts(t, l, calm/2)
	lasts(t, inRow, 0)
	testkit.Release(t, l)
	sqlkit.Postgres(t, server.URL(), "DROP TABLE filler")
	testkit.Eventually(t, "the row holder's move, with room on the disk", func() bool { return until() == 0 })
	lasts(t, inRow, 0)
	testkit.Release(t, inRow)
}
