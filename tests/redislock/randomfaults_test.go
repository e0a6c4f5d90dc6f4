package redislock_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/broken"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/history"
	"github.com/hasplock/hasp/internal/recordedhold"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/tests/internal/linear"
)

// faultRun is several clients of one server, each behind a separate network, and the history of
// two locks while faults are injected into server and networks.
type faultRun struct {
	recordedhold.Workload
	server *backends.Redis
	nets   []*faultnet.Proxy
}

const faultClients = 4

// newFaultRun starts a server that forgets nothing when it is killed: no lock survives the kill of
// the other kind. wrap may break the driver of each client.
func newFaultRun(t *testing.T, wrap func(driver.Backend) driver.Backend) *faultRun {
	t.Helper()
	s := &faultRun{
		server:   backends.StartRedis(t, backends.RedisOptions{AppendOnly: true, AppendFsync: "always"}),
		Workload: recordedhold.Workload{Names: []string{"a", "b"}, TTL: T, Rec: history.New()},
	}
	for range faultClients {
		net := testkit.Proxy(t, s.server.Addr)
		c := testkit.ClientOn(t, wrap(testkit.Open(t, "redis://"+net.Addr())), hasp.WithTTL(T))
		s.nets, s.Clients = append(s.nets, net), append(s.Clients, c)
	}
	return s
}

// injectFaults injects one fault after another until the time is over, and repairs all.
func (s *faultRun) injectFaults(t *testing.T, lasts time.Duration) {
	t.Helper()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	for end := time.Now().Add(lasts); time.Now().Before(end); {
		net := s.nets[r.IntN(len(s.nets))]
		span := T/10 + time.Duration(r.Int64N(int64(3*T/2)))
		switch r.IntN(7) {
		case 0: // killed, and down for a while
			must(t, s.server.Kill())
			time.Sleep(span / 4)
			must(t, s.server.Restart())
		case 1:
			must(t, s.server.Pause())
			time.Sleep(span)
			must(t, s.server.Resume())
		case 2:
			do(t, s.server, "CLIENT", "KILL", "TYPE", "normal")
		case 3: // every message under way is lost
			do(t, s.server, "CLIENT", "KILL", "TYPE", "pubsub")
		case 4: // held, then delivered
			net.Partition()
			time.Sleep(span)
			net.Heal()
		case 5:
			net.Lose(faultnet.Down, 1+r.IntN(3), nil)
		case 6:
			do(t, s.server, "SCRIPT", "FLUSH")
		}
		time.Sleep(time.Duration(r.Int64N(int64(T / 4))))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// No fault of server and networks lets two hold at once, and tokens follow the order of the
// grants. When the faults are over, every client gets every lock.
func TestRandomFaults(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	s := newFaultRun(t, unbroken)
	ctx, cancel := context.WithCancel(t.Context())
	workers := s.Run(ctx)
	for tries := 3; tries > 0; tries-- { // on a busy machine no client may come to hold between the faults
		s.injectFaults(t, 12*time.Second)
		h, err := s.Rec.History()
		must(t, err)
		if slices.ContainsFunc(h, func(o history.Operation) bool { return o.Outcome == history.Granted }) {
			break
		}
	}
	cancel()
	workers.Wait()
	for _, c := range s.Clients {
		for _, name := range []string{"a", "b"} {
			testkit.UseDespiteErrors(t, c, name)
		}
	}
	h, err := s.Rec.History()
	must(t, err)
	linear.Require(t, h, linear.Options{Fencing: true})
}

// The control: a driver that reports renewals and makes none. Without any fault the checks find
// it, by the first hold that outlasts its TTL.
func TestControlRandomFaults(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	s := newFaultRun(t, broken.Liar)
	ctx, cancel := context.WithTimeout(t.Context(), 2*slack)
	defer cancel()
	if caught, err := s.Violated(ctx); !caught {
		t.Errorf("locks that were never renewed have passed the checks: %v", err)
	}
}
