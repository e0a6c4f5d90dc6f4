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
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/pglock"
)

// killBackends ends every connection of hasp's, as an administrator does.
const killBackends = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'hasp'"

// S1, L2: the server ends all connections, again and again. Leases live in rows: nobody
// loses one, waiters get theirs, and an unprotected counter adds up.
func TestTerminatedBackends(t *testing.T) {
	t.Parallel()
	server := private(t)
	held := lock(t, client(t, server.URL()), "held")
	const workers, times = 4, 8
	counter, done := 0, make(chan error, workers)
	for range workers {
		c := client(t, server.URL())
		go func() {
			done <- func() error {
				ctx, cancel := context.WithTimeout(t.Context(), 3*slack)
				defer cancel()
				for worked := 0; worked < times; {
					err := c.Do(ctx, "counter", func(context.Context) error {
						worked++
						n := counter
						time.Sleep(time.Millisecond)
						counter = n + 1
						return nil
					})
					// Trouble before it stood in the queue is told at once, for the caller to try
					// again; trouble of a release does not undo the work.
					if ctx.Err() != nil {
						return err
					}
				}
				return nil
			}()
		}()
	}
	for finished := 0; finished < workers; {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			finished++
		case <-time.After(200 * time.Millisecond):
			ask[int64](t, server.URL(), killBackends)
		}
	}
	if counter != workers*times {
		t.Errorf("counted to %d, want %d", counter, workers*times)
	}
	if !held.Held() {
		t.Error(held.Err())
	}
	release(t, held)
}

// S1, S2: the server crashes or is restarted cleanly. What was granted is in its log: the
// holder goes on, the waiter gets it after the release, with a higher token.
func TestRestart(t *testing.T) {
	t.Parallel()
	server := private(t)
	for how, end := range map[string]func() error{"crash": server.Kill, "clean": server.Stop} {
		held := lock(t, client(t, server.URL()), how)
		next := queued(t, server.URL(), how)
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if err := server.Restart(); err != nil {
			t.Fatal(err)
		}
		if !held.Held() {
			t.Errorf("%s: %v", how, held.Err())
		}
		release(t, held)
		got := takes(t, next)
		if got.Token() <= held.Token() {
			t.Errorf("%s: token %d after %d", how, got.Token(), held.Token())
		}
		release(t, got)
	}
}

// S8: the connection is cut between the commit and the answer. The entry is found again,
// with its first token; a release is confirmed by the second attempt.
func TestAnswerLost(t *testing.T) {
	t.Parallel()
	net, storeURL := behind(t, storeURL(t))
	c := client(t, storeURL)
	other := client(t, storeURL)
	release(t, lock(t, c, "lost answer")) // prepares the statements

	cut := net.Lose(faultnet.Down, 1, faultnet.Contains("lost answer"))
	l := lock(t, c, "lost answer")
	<-cut
	if q := entries(t, other, "lost answer"); len(q) != 1 || q[0].Token != l.Token() {
		t.Errorf("the lease has token %d, and the store %+v", l.Token(), q)
	}
	cut = net.Lose(faultnet.Down, 1, faultnet.Contains("lost answer"))
	release(t, l)
	<-cut
	if q := entries(t, other, "lost answer"); len(q) != 0 {
		t.Errorf("released, and the store has %+v", q)
	}
}

// S5, L2: the network holds everything for longer than a TTL and then delivers it. The
// holder has known in time; what arrives late revives nothing; the next one holds.
func TestPartition(t *testing.T) {
	t.Parallel()
	direct := storeURL(t)
	net, cutOff := behind(t, direct)
	l := lock(t, client(t, cutOff, hasp.WithTTL(T)), "partition")
	next := queued(t, direct, "partition")
	net.Partition()
	got := takes(t, next)
	if l.Held() {
		t.Error("two hold")
	}
	wantLost(t, l, hasp.Expired)
	net.Heal()
	lasts(t, got, T)
	if q := entries(t, client(t, direct), "partition"); len(q) != 1 || q[0].ID != got.ID() {
		t.Errorf("%s holds, and the store has %+v", got.ID(), q)
	}
	release(t, got)
}

// L2: the connection that listens falls silent, and with it the notification. The next
// renewal finds that out, since it uses the same connection; nobody sleeps for ever.
func TestSilentListener(t *testing.T) {
	t.Parallel()
	direct := storeURL(t)
	net, silent := behind(t, direct)
	held := lock(t, client(t, direct), "silent")
	next := queued(t, silent, "silent", hasp.WithTTL(T))
	net.Set(faultnet.Down, faultnet.Rule{Mode: faultnet.Drop})
	release(t, held)
	// The control: while the network is silent, it is the notification that is missing.
	select {
	case <-next:
		t.Error("granted through a silent network")
	case <-time.After(T / 4):
	}
	net.Heal() // cuts what lost bytes: from here on dialling works
	release(t, takes(t, next))
}

// S6: the pool is exhausted by its other users. Acquiring waits for its context; what is
// held is renewed on a connection of its own.
func TestPoolExhausted(t *testing.T) {
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
	b, err := pglock.Open(t.Context(), pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := clientOn(t, func() (*hasp.Client, error) { return hasp.New(b, hasp.WithTTL(T)) })
	l := lock(t, c, "exhausted")
	taken, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// The control: whoever renewed through the pool would wait in vain.
	short, cancel := context.WithTimeout(t.Context(), T/4)
	defer cancel()
	if _, err := pool.Acquire(short); err == nil {
		t.Fatal("the pool is not exhausted")
	}
	lasts(t, l, T)
	short, cancel = context.WithTimeout(t.Context(), T/4)
	defer cancel()
	if _, err := c.Mutex("another").Lock(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with the pool exhausted: %v", err)
	}
	taken.Release()
	release(t, l)
}

// L3: max_connections is reached. New clients are told so; those who hold go on, because
// renewals do not need a new connection.
func TestMaxConnections(t *testing.T) {
	t.Parallel()
	server := private(t, "max_connections = 20")
	do(t, server.URL(), "CREATE ROLE crowd LOGIN")
	c := client(t, server.URL(), hasp.WithTTL(T))
	l := lock(t, c, "crowded")
	var last error
	for range 25 {
		conn, err := pgx.Connect(t.Context(), as(server.URL(), "crowd"))
		if last = err; err != nil {
			break
		}
		defer conn.Close(context.Background())
	}
	if last == nil {
		t.Fatal("the server is not full")
	}
	if _, err := hasp.Open(t.Context(), as(server.URL(), "crowd")); err == nil {
		t.Error("a full server let another client in")
	}
	lasts(t, l, T)
	release(t, l)
}

// Time-outs that an administrator has set low for a role concern neither waiters nor
// renewals: our own connections switch them off.
func TestLowTimeouts(t *testing.T) {
	t.Parallel()
	server := private(t)
	do(t, server.URL(), "CREATE ROLE hasty LOGIN SUPERUSER; ALTER ROLE hasty SET statement_timeout = '1s'; ALTER ROLE hasty SET idle_session_timeout = '1s'; ALTER ROLE hasty SET lock_timeout = '1s'; ALTER ROLE hasty SET idle_in_transaction_session_timeout = '1s'")
	// The control: they do work.
	conn, err := pgx.Connect(t.Context(), as(server.URL(), "hasty"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "SELECT pg_sleep(5)"); err == nil {
		t.Error("statement_timeout has no effect")
	}
	conn.Close(context.Background())
	for _, strategy := range []string{"table", "advisory", "row"} {
		storeURL := with(as(server.URL(), "hasty"), "strategy="+strategy)
		held := lock(t, client(t, storeURL), strategy)
		next := queued(t, storeURL, strategy)
		time.Sleep(1500 * time.Millisecond) // longer than all of them
		if !held.Held() {
			t.Errorf("%s: %v", strategy, held.Err())
		}
		release(t, held)
		release(t, takes(t, next))
	}
}

// A database whose default is SERIALIZABLE fails transactions that READ COMMITTED lets
// through. Over a *sql.DB or somebody's pool that default is in force: such a failure
// changes nothing, and is asked again.
func TestSerializable(t *testing.T) {
	t.Parallel()
	server := private(t)
	do(t, server.URL(), "ALTER DATABASE postgres SET default_transaction_isolation = 'serializable'")
	const workers, times = 4, 10
	counter, done := 0, make(chan error, workers)
	for range workers {
		pool, err := pgxpool.New(t.Context(), server.URL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		b, err := pglock.Open(t.Context(), pool, nil)
		if err != nil {
			t.Fatal(err)
		}
		c := clientOn(t, func() (*hasp.Client, error) { return hasp.New(b) })
		go func() {
			var err error
			for i := 0; i < times && err == nil; i++ {
				err = c.Do(patience(t), "serial", func(context.Context) error { counter++; return nil })
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

// The disk is full: nothing new is acquired, and the error says why at once; what is held
// is renewed and can be released.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("a small file system needs root")
	}
	server := private(t)
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
	ts := dir + "/tablespace"
	if out, err := exec.Command("install", "-d", "-o", "postgres", ts).CombinedOutput(); err != nil {
		t.Skipf("no account postgres: %s", out)
	}
	do(t, server.URL(), "CREATE TABLESPACE small LOCATION '"+ts+"'")
	do(t, server.URL(), "CREATE SCHEMA full_disk; ALTER DATABASE postgres SET default_tablespace = small")
	storeURL := with(server.URL(), "schema=full_disk")
	c := client(t, storeURL, hasp.WithTTL(T))
	l := lock(t, c, "kept")
	do(t, server.URL(), "CREATE TABLE filler (text text)")
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
	// New names fill the pages that the tables still have, and then there is no other.
	refused := error(nil)
	for i := 0; i < 3000 && refused == nil; i++ {
		ctx, cancel := context.WithTimeout(t.Context(), slack)
		_, refused = c.Mutex("new/" + time.Duration(i).String()).Lock(ctx)
		cancel()
	}
	if !errors.Is(refused, driver.ErrRefused) {
		t.Errorf("with the disk full: %v", refused)
	}
	lasts(t, l, T)
	release(t, l)
}
