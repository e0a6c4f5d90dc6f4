package zklock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// grantAtMost restarts a server with another maxSessionTimeout.
func grantAtMost(t *testing.T, z *backends.ZooKeeper, most time.Duration) {
	t.Helper()
	conf, err := z.Ask("conf")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := os.OpenFile(filepath.Join(parseTable(conf, "=")["dataDir"], "../../zoo.cfg"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(cfg, "\nmaxSessionTimeout=%d\n", most.Milliseconds()); err != nil {
		t.Fatal(err)
	}
	if err := cfg.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Restart(); err != nil {
		t.Fatal(err)
	}
}

// A server comes back that grants a session less than it had, and then the client is cut off:
// the next holder is granted after the shorter time-out, when the last must not believe any
// more. It did for seconds.
func TestShorterOnReconnection(t *testing.T) {
	t.Parallel() // it waits
	z := backends.StartZooKeeper(t, backends.ZooKeeperOptions{})
	const ttl, shorter = calm, 6 * time.Second // the server's start is nothing beside the first
	s, name := newSite(t, ttl, nil, z), uniqueName(t)
	held, c := s.lock(t, name), s.conn(t)
	if got := c.timeout(); got != ttl {
		t.Fatalf("granted %s", got)
	}
	grantAtMost(t, z, shorter)
	testkit.Eventually(t, "the session's continuation", func() bool { return c.timeout() == shorter })
	s.net[0].Partition()
	next := newSite(t, ttl, nil, z).lock(t, name)
	if left := time.Until(held.Deadline()); held.Held() {
		t.Errorf("the last holder would go on to believe for %s", left)
	}
	if held.Token() >= next.Token() {
		t.Errorf("token %d after %d", next.Token(), held.Token())
	}
	released(t, next)
	s.net[0].Heal()
	released(t, s.lock(t, name)) // by a session that has had the shorter time-out from the start
	if got := s.conn(t).timeout(); got != shorter {
		t.Errorf("granted %s", got)
	}
}

// released gives back a lease that a busy machine may have let end.
func released(t *testing.T, l *hasp.Lease) {
	t.Helper()
	if err := l.Release(t.Context()); err != nil && !errors.Is(err, hasp.ErrLost) {
		t.Errorf("release: %v", err)
	}
}

// Where no promise is broken the session goes on, and from there on a renewal is worth the
// smaller time-out.
func TestSlightlyShorterOnReconnection(t *testing.T) {
	t.Parallel() // it waits
	z := backends.StartZooKeeper(t, backends.ZooKeeperOptions{})
	const ttl, shorter = calm, calm - time.Second
	s := openSession(t, patient(t, nil, z.Addr), ttl)
	k := s.Ticket(testkit.RequestAs(uniqueName(t), "a"))
	if _, err := k.Enqueue(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(ttl - shorter) // what was promised at the opening ends before what is granted below
	grantAtMost(t, z, shorter)
	testkit.Eventually(t, "the session's continuation", func() bool { return s.conn.timeout() == shorter })
	for range 2 {
		since := time.Since(s.connectedAt().At) // the last sign of life that has been proven
		if granted, err := s.KeepAlive(t.Context()); err != nil || granted+since > shorter {
			t.Errorf("renewed for %s, %s after the reconnection, %v", granted, since, err)
		}
	}
	if err := k.Leave(t.Context()); err != nil {
		t.Errorf("the lock was lost: %v", err)
	}
}
