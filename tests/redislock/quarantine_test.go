package redislock_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// forgetting are the ways in which a server loses a grant that it has confirmed.
var forgetting = []struct {
	name string
	how  func(t *testing.T, server *backends.Redis)
}{
	{"FLUSHALL", func(t *testing.T, server *backends.Redis) { do(t, server, "FLUSHALL") }},
	{"FLUSHDB", func(t *testing.T, server *backends.Redis) { do(t, server, "FLUSHDB") }},
	{"killed", func(t *testing.T, server *backends.Redis) {
		must(t, server.Kill())
		must(t, server.Restart())
	}},
	{"killed with an old file", func(t *testing.T, server *backends.Redis) { // forgetOld saves it before the grant
		must(t, server.Kill())
		must(t, server.Restart())
	}},
}

// A server that has forgotten a grant grants nothing until the forgotten lease is over: the next
// holder comes when the first does not believe any more. Without the quarantine it comes at once.
func TestQuarantine(t *testing.T) {
	for _, strategy := range []string{"queue", "setnx", "redisson"} {
		for _, f := range forgetting {
			for _, quarantine := range []string{"on", "off"} {
				testQuarantine(t, strategy, f.name, quarantine, f.how)
			}
		}
	}
}

func testQuarantine(t *testing.T, strategy, how, quarantine string, forget func(*testing.T, *backends.Redis)) {
	t.Run(strategy+"/"+how+"/"+quarantine, func(t *testing.T) {
		t.Parallel()
		server := backends.StartRedis(t, backends.RedisOptions{})
		storeURL := server.URL() + "?strategy=" + strategy + "&quarantine=" + quarantine
		first, second := client(t, storeURL), client(t, storeURL)
		must(t, testkit.Lock(t, second, "a").Release(t.Context()))
		if strings.Contains(how, "old file") {
			do(t, server, "SAVE")
		}
		held := testkit.Lock(t, first, "a")
		forget(t, server)
		next := testkit.LockDespiteErrors(t, second, "a")
		switch believed := held.Held(); {
		case quarantine == "on" && believed:
			t.Error("two believe that they hold")
		case quarantine == "off" && !believed:
			t.Log("INCONCLUSIVE: the first has learned of its loss before the second was granted")
		}
		if next.Token() <= held.Token() {
			t.Errorf("token %d after %d", next.Token(), held.Token())
		}
		if err := held.Release(t.Context()); !errors.Is(err, hasp.ErrLost) && !errors.Is(err, hasp.ErrUnknown) { // S7
			t.Errorf("release of a forgotten lock: %v", err)
		}
	})
}

// A try says why it is refused, and for how long.
func TestQuarantineIsTold(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{"queue", "setnx", "redisson"} {
		t.Run(strategy, func(t *testing.T) { testQuarantineIsTold(t, strategy) })
	}
}

func testQuarantineIsTold(t *testing.T, strategy string) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	c := client(t, server.URL()+"?strategy="+strategy)
	must(t, testkit.Lock(t, c, "a").Release(t.Context()))
	do(t, server, "FLUSHALL")
	_, err := c.Mutex("a").TryLock(t.Context())
	if busy := (*hasp.BusyError)(nil); !errors.As(err, &busy) || busy.Quarantine <= 0 || !errors.Is(err, hasp.ErrQuarantine) || errors.Is(err, hasp.ErrBusy) || !strings.Contains(err.Error(), "may have forgotten locks") {
		t.Errorf("%v", err)
	}
	q, err := c.Inspect(t.Context(), "a")
	must(t, err)
	if q.Quarantine <= 0 {
		t.Errorf("%+v", q)
	}
	testkit.WantFinding(t, findings(t, server.URL()+"?strategy="+strategy), "quarantine", driver.Warn, "may have forgotten locks")
}

// The first waiter of a server in quarantine is not shown as a holder or a leader, until it is one.
func TestFirstWaiterInQuarantine(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	c := client(t, server.URL())
	must(t, testkit.Lock(t, c, "a").Release(t.Context()))
	do(t, server, "FLUSHALL")
	waiting := testkit.Waiting(t, "a", func(o hasp.Option) *hasp.Client { return client(t, server.URL(), o) })
	next := testkit.Waiting(t, "a", func(o hasp.Option) *hasp.Client { return client(t, server.URL(), o) })
	inspect := func() (q hasp.Queue) { // a busy machine may take longer than the client waits for an answer
		t.Helper()
		testkit.Until(t, "an answer", func() (err error) {
			q, err = c.Inspect(t.Context(), "a")
			return err
		})
		return q
	}
	for {
		q := inspect()
		var leads error
		testkit.Until(t, "an answer", func() error {
			if _, leads = c.Election("a").Leader(t.Context()); errors.Is(leads, hasp.ErrNotFound) {
				return nil
			}
			return leads
		})
		if inspect().Quarantine == 0 { // it has ended meanwhile
			break
		}
		if len(q.Holders) != 0 || len(q.Waiters) != 2 || q.Quarantine <= 0 || !errors.Is(leads, hasp.ErrNotFound) {
			t.Fatalf("in quarantine: %+v; leader: %v", q, leads)
		}
	}
	held := testkit.Granted(t, waiting)
	q := inspect()
	if len(q.Holders) != 1 || len(q.Waiters) != 1 || q.Quarantine != 0 {
		t.Errorf("after it: %+v", q)
	}
	testkit.Release(t, held)
	testkit.Release(t, testkit.Granted(t, next))
}

// A server that is new to hasp waits for what it may have forgotten before its start, and no
// longer; where an operator says that it is new, it does not wait.
func TestQuarantineOfANewServer(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	began := time.Now()
	const ttl = time.Minute
	testkit.Lock(t, client(t, server.URL(), hasp.WithTTL(ttl)), "a") // StartRedis has said so
	if took := time.Since(began); took > ttl/2 {
		t.Errorf("a server that is said to be new took %s", took)
	}
	do(t, server, "DEL", "hasp:new")
	short := client(t, server.URL()+"?prefix=other:", hasp.WithTTL(T))
	testkit.Eventually(t, "an uptime of more than the TTL", func() bool { return time.Since(began) > T+2*time.Second })
	if _, err := short.Mutex("a").TryLock(t.Context()); err != nil {
		t.Errorf("the server runs for longer than a TTL: %v", err)
	}
	long := client(t, server.URL()+"?prefix=third:", hasp.WithTTL(10*time.Minute))
	if _, err := long.Mutex("a").TryLock(t.Context()); !errors.Is(err, hasp.ErrQuarantine) {
		t.Errorf("a lease of ten minutes may be forgotten: %v", err)
	}
}

// The quarantine costs an acquisition one read of the mark, and one of the replication's state, in
// its script, and no write.
func TestQuarantineCosts(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	c := client(t, server.URL(), hasp.WithTTL(10*time.Minute)) // no renewal reads the mark meanwhile
	testkit.Release(t, testkit.Lock(t, c, "a"))                // writes the mark, and is told of it
	const pairs = 100
	infos, reads, writes := server.Calls(t, "info"), server.Calls(t, "hmget"), server.Calls(t, "hset")
	for range pairs {
		testkit.Release(t, testkit.Lock(t, c, "a"))
	}
	infos, reads, writes = server.Calls(t, "info")-infos, server.Calls(t, "hmget")-reads, server.Calls(t, "hset")-writes
	if infos > pairs+3 || reads != 3*pairs || writes != pairs { // some INFOs are this test's own; lock and release read and write the queue
		t.Errorf("%d acquisitions asked %d times, read %d hashes and wrote %d", pairs, infos, reads, writes)
	}
}

// A server that has its file keeps the order of its waiters over a restart, one that has forgotten
// them has them queue up again. Neither hands over while it is closed, not even at a release.
func TestQuarantineKeepsOrder(t *testing.T) {
	for _, remembers := range []bool{true, false} {
		t.Run(fmt.Sprintf("remembers=%t", remembers), func(t *testing.T) {
			t.Parallel()
			server := backends.StartRedis(t, backends.RedisOptions{AppendOnly: remembers, AppendFsync: "always"})
			ttl := hasp.WithTTL(onDisk)
			first := client(t, server.URL(), ttl)
			releaseOnDisk(t, testkit.Lock(t, first, "before"))
			held := testkit.Lock(t, first, "a")
			var waiters []<-chan *hasp.Lease
			for range 3 {
				waiters = append(waiters, testkit.Waiting(t, "a", func(o hasp.Option) *hasp.Client { return client(t, server.URL(), o, ttl) }))
			}
			must(t, server.Kill())
			must(t, server.Restart())
			restarted := time.Now()
			testkit.Eventually(t, "the connection", func() bool {
				_, err := first.Inspect(t.Context(), "a")
				return err == nil
			})
			if remembers {
				releaseOnDisk(t, held)
			} else if held.Release(t.Context()) == nil {
				t.Error("released what the server has forgotten")
			}
			if !remembers {
				for range waiters { // in any order
					select {
					case l := <-waiters[0]:
						testkit.Release(t, l)
					case l := <-waiters[1]:
						testkit.Release(t, l)
					case l := <-waiters[2]:
						testkit.Release(t, l)
					case <-time.After(testkit.Patience):
						t.Fatal("no waiter is granted")
					}
				}
				return
			}
			for i, w := range waiters {
				l := testkit.Granted(t, w)
				if since := time.Since(restarted); i == 0 && since < onDisk-time.Second {
					t.Errorf("granted %s after the restart", since)
				}
				for _, later := range waiters[i+1:] {
					if len(later) > 0 {
						t.Error("a later waiter is granted as well")
					}
				}
				releaseOnDisk(t, l)
			}
		})
	}
}

// A key of another program in the place of the mark is left alone: the server grants nothing, and the
// doctor says why.
func TestForeignMark(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	do(t, server, "SET", "hasp:mark", "x")
	c := client(t, server.URL())
	wantTry(t, c, "a", hasp.ErrQuarantine)
	testkit.WantFinding(t, findings(t, server.URL()), "quarantine", driver.Bad, "hasp:mark")
	if got := do(t, server, "GET", "hasp:mark"); got != "x" {
		t.Errorf("it is %q now", got)
	}
	do(t, server, "DEL", "hasp:mark") // the cure that the doctor names
	wantTry(t, c, "a", nil)
}

// A server with full memory cannot write the mark, and so grants nothing. A try is told the reason.
func TestMarkInFullMemory(t *testing.T) {
	for _, strategy := range strategies {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			server := backends.StartRedis(t, backends.RedisOptions{})
			c := client(t, server.URL()+"?strategy="+strategy)
			do(t, server, "RPUSH", "list", "x")
			do(t, server, "CONFIG", "SET", "maxmemory", "1")
			wantTry(t, c, "a", driver.ErrRefused)
			if _, err := c.Mutex("a").TryLock(t.Context()); err == nil || !strings.Contains(err.Error(), "OOM") {
				t.Errorf("%v", err)
			}
			do(t, server, "CONFIG", "SET", "maxmemory", "0")
			wantTry(t, c, "a", nil)
		})
	}
}
