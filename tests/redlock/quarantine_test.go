package redlock_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// If a lock is on three servers of five, and one of them restarts without its data while the other
// two come back, a second client could take it. It is refused until the first lease is over,
// because the three have no vote. Without the quarantine it is granted, and the first client is
// told only by its next renewal. If the server remembers, the first one keeps the lock.
func TestRestartedEmpty(t *testing.T) {
	for _, c := range []struct {
		remembers  bool
		quarantine string
	}{{false, "on"}, {false, "off"}, {true, "on"}, {true, "off"}} {
		t.Run(fmt.Sprintf("remembers=%t/quarantine=%s", c.remembers, c.quarantine), func(t *testing.T) {
			t.Parallel()
			nodes := backends.StartRedisNodes(t, 5, backends.RedisOptions{AppendOnly: c.remembers, AppendFsync: "always"})
			const nodeTimeout = 500 * time.Millisecond
			storeURL := fmt.Sprintf("%s?node_timeout=%s&quarantine=%s", urlOf(nodes), nodeTimeout, c.quarantine)
			ttl := 15 * time.Second // a renewal would repair what is missing
			if !c.remembers && c.quarantine == "off" {
				ttl = time.Minute // nothing waits for its end, and three starts may take long
			}
			first, second := client(t, storeURL, hasp.WithTTL(ttl)), client(t, storeURL)
			each(t, nodes[3:], kill)
			l := testkit.Lock(t, first, "a")
			// A request of the first client may still wait for a dead server. It would arrive after
			// the restart and be a vote for the first, which is right, and not what is tried here.
			time.Sleep(nodeTimeout)
			each(t, nodes[2:], restart)
			other, err := second.Mutex("a").TryLock(t.Context())
			busy := (*hasp.BusyError)(nil)
			switch quarantined := errors.As(err, &busy) && busy.Quarantine > 0; {
			case !c.remembers && c.quarantine == "off":
				if err != nil {
					t.Fatalf("the hazard did not come about: %v", err)
				}
				testkit.Lost(t, l, hasp.ReasonDenied)
				if !other.Held() {
					t.Error(other.Err())
				}
				return
			case c.remembers && !errors.Is(err, hasp.ErrBusy) || !c.remembers && !errors.Is(err, hasp.ErrQuarantine) || quarantined == c.remembers:
				t.Errorf("second client: %v", err)
			}
			if c.remembers {
				time.Sleep(ttl / 2)
				if !l.Held() {
					t.Error(l.Err())
				}
				return
			}
			next := testkit.LockDespiteErrors(t, second, "a")
			if l.Held() {
				t.Error("two believe that they hold")
			}
			if !next.Held() {
				t.Error(next.Err())
			}
		})
	}
}

// Two servers of five forget, and then two others: the lock is held throughout, other clients are
// refused, and other names can be locked. Three that forget grant nothing until the lease is over.
func TestServersForget(t *testing.T) {
	testtier.Long(t) // each step waits for a quarantine
	t.Parallel()
	nodes := backends.StartRedisNodes(t, 5, backends.RedisOptions{})
	c, other := client(t, urlOf(nodes)), client(t, urlOf(nodes))
	l := testkit.Lock(t, c, "a")
	testkit.Eventually(t, "the key on all servers", func() bool { return len(at(t, nodes, "a", l.ID())) == 5 })
	for _, pair := range [][]*backends.Redis{nodes[:2], nodes[2:4]} {
		each(t, pair, restart)
		began := time.Now()
		testkit.Release(t, testkit.LockDespiteErrors(t, other, "b"))
		if took := time.Since(began); took > calm/2 {
			t.Errorf("another name took %s", took)
		}
		testkit.Eventually(t, "the keys on the servers that have forgotten them", func() bool {
			if _, err := other.Mutex("a").TryLock(t.Context()); err == nil {
				t.Fatal("two hold")
			}
			return len(at(t, pair, "a", l.ID())) == 2
		})
		if !l.Held() {
			t.Fatal(l.Err())
		}
	}
	each(t, nodes[1:4], restart)
	next := testkit.LockDespiteErrors(t, other, "a")
	if l.Held() {
		t.Error("two believe that they hold")
	}
	testkit.Release(t, next)
}

// Servers that were started again with their files have no vote for a TTL from the first request on,
// however late that comes. Then they have.
func TestRestartLongAgo(t *testing.T) {
	t.Parallel()
	nodes := backends.StartRedisNodes(t, 3, backends.RedisOptions{AppendOnly: true, AppendFsync: "always"})
	ttl := hasp.WithTTL(T)
	c := client(t, urlOf(nodes), ttl)
	testkit.Release(t, testkit.LockDespiteErrors(t, c, "a"))
	each(t, nodes, restart)
	for _, n := range nodes {
		testkit.Eventually(t, "an uptime of more than a TTL", func() bool {
			info, err := n.Do("INFO", "server")
			_, after, _ := strings.Cut(info, "uptime_in_seconds:")
			text, _, _ := strings.Cut(after, "\r")
			seconds, _ := strconv.Atoi(text)
			return err == nil && time.Duration(seconds-1)*time.Second > T
		})
	}
	try := func(c *hasp.Client) (err error) {
		testkit.Until(t, "an answer", func() error {
			var l *hasp.Lease
			if l, err = c.Mutex("a").TryLock(t.Context()); err == nil {
				testkit.Release(t, l)
			}
			if errors.Is(err, hasp.ErrQuarantine) {
				return nil
			}
			return err
		})
		return err
	}
	if err := try(client(t, urlOf(nodes), ttl)); !errors.Is(err, hasp.ErrQuarantine) {
		t.Errorf("the mark is of another process: %v", err)
	}
	testkit.Release(t, testkit.LockDespiteErrors(t, client(t, urlOf(nodes), ttl), "a"))
	for _, c := range []*hasp.Client{c, client(t, urlOf(nodes), ttl)} {
		if err := try(c); err != nil {
			t.Error(err)
		}
	}
	each(t, nodes, restart)
	if err := try(client(t, urlOf(nodes), hasp.WithTTL(10*time.Minute))); !errors.Is(err, hasp.ErrQuarantine) {
		t.Errorf("a lease of ten minutes may be forgotten: %v", err)
	}
}
