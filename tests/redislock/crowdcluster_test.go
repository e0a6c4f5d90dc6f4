package redislock_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// One client holds a hundred thousand locks of a cluster for ten TTLs. (Each attempt got half of
// what the oldest entry had left, so that attempts became shorter until none renewed a slice:
// 70,000 to 96,000 were lost within 25 seconds.) A machine that does other things cannot renew so
// many in time, by whichever plan: so the test runs on request, make crowd, on a quiet one.
func TestHundredThousandOfACluster(t *testing.T) {
	if os.Getenv("HASP_CROWD") == "" {
		t.Skip("HASP_CROWD is not set: it needs a quiet machine for four minutes; make crowd runs it")
	}
	const ttl = 10 * time.Second
	lost, err := lostOfACluster(t, 100_000, 10*ttl, func(b driver.Backend) driver.Backend { return b })
	if lost > 0 {
		t.Errorf("%d are lost: %v", lost, err)
	}
	lost, err = lostOfACluster(t, 100_000, 10*ttl, func(b driver.Backend) driver.Backend { return &halvingBackend{b} })
	if lost == 0 {
		t.Error("the control was not caught: nothing is lost by attempts that become shorter")
	}
	t.Logf("the control has lost %d: %v", lost, err)
}

// lostOfACluster says how many of n locks are lost when the first are, or after d, and why.
func lostOfACluster(t *testing.T, n int, d time.Duration, wrap func(driver.Backend) driver.Backend) (lost int, why error) {
	t.Helper()
	cluster := backends.StartRedisCluster(t)
	for _, node := range cluster.Nodes { // no failover
		do(t, node, "CONFIG", "SET", "cluster-node-timeout", "120000")
	}
	c := testkit.ClientOn(t, wrap(testkit.Open(t, "redis://"+strings.Join(cluster.Addrs(), ","))))
	defer c.Close() // the next run is not to renew these, too
	began := time.Now()
	leases := lockMany(t, c, n, 64)
	t.Logf("%d acquired in %s", n, time.Since(began))
	if t.Failed() {
		t.FailNow()
	}
	for end := time.Now().Add(d); lost == 0 && time.Now().Before(end); time.Sleep(time.Second) {
		for _, l := range leases {
			if !l.Held() {
				lost, why = lost+1, l.Err()
			}
		}
	}
	return lost, why
}

// halvingBackend hides from the core that a renewal got on and had too little time.
type halvingBackend struct{ driver.Backend }

func (b *halvingBackend) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	s, granted, err := b.Backend.Open(ctx, o)
	return &halvingSession{s}, granted, err
}

type halvingSession struct{ driver.Session }

func (s *halvingSession) KeepAlive(ctx context.Context) (time.Duration, error) {
	granted, err := s.Session.KeepAlive(ctx)
	if partial := new(driver.PartialRenewal); errors.As(err, &partial) {
		partial.Slow = false
	}
	return granted, err
}
