package redlock_test

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
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

// faultRun is five servers that forget everything when they are killed, and clients that each
// reach them through separate networks: nets[client][server].
type faultRun struct {
	recordedhold.Workload
	nodes []*backends.Redis
	nets  [][]*faultnet.Proxy
}

const faultRunClients = 4

var faultRunNames = []string{"a", "b"}

// newFaultRun starts everything. wrap may break the driver of each client.
func newFaultRun(t *testing.T, wrap func(driver.Backend) driver.Backend) *faultRun {
	t.Helper()
	s := &faultRun{
		nodes:    backends.StartRedisNodes(t, 5, backends.RedisOptions{}),
		Workload: recordedhold.Workload{Names: faultRunNames, TTL: T, Rec: history.New()},
	}
	for range faultRunClients {
		var nets []*faultnet.Proxy
		var addrs []string
		for _, n := range s.nodes {
			net := testkit.Proxy(t, n.Addr)
			nets, addrs = append(nets, net), append(addrs, net.Addr())
		}
		c := testkit.ClientOn(t, wrap(testkit.Open(t, "redlock://"+strings.Join(addrs, ","))), hasp.WithTTL(T))
		s.nets, s.Clients = append(s.nets, nets), append(s.Clients, c)
	}
	return s
}

// injectFaults injects faults until the time is over, three at once at the most: a minority nearly
// always, and a majority now and then. In the end it repairs all.
func (s *faultRun) injectFaults(t *testing.T, lasts time.Duration) {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	whole := make(chan int, len(s.nodes)) // one that takes a server out has it alone
	for i := range s.nodes {
		whole <- i
	}
	end := time.Now().Add(lasts)
	var wg sync.WaitGroup
	for k := range uint64(3) {
		r := rand.New(rand.NewPCG(seed, k))
		wg.Go(func() {
			for time.Now().Before(end) {
				i := <-whole
				if err := s.inject(r, i); err != nil {
					t.Errorf("server %d: %v", i, err)
				}
				whole <- i
				time.Sleep(time.Duration(r.Int64N(int64(T / 2))))
			}
		})
	}
	wg.Wait()
}

// inject injects one fault at one server, or in one client's network to it.
func (s *faultRun) inject(r *rand.Rand, i int) error {
	n, net := s.nodes[i], s.nets[r.IntN(len(s.nets))][i]
	span := T/10 + time.Duration(r.Int64N(int64(3*T/2)))
	switch r.IntN(6) {
	case 0, 1:
		// Its keys are gone. It may vote again when all that was granted on them has ended:
		// T from now at the latest. That is the rule of delayed restarts.
		if err := n.Kill(); err != nil {
			return err
		}
		time.Sleep(T + span/4)
		return n.Restart()
	case 2:
		if err := n.Pause(); err != nil {
			return err
		}
		time.Sleep(span)
		return n.Resume()
	case 3:
		_, err := n.Do("CLIENT", "KILL", "TYPE", "normal")
		return err
	case 4: // held, then delivered: requests of long ago among them
		net.Partition()
		time.Sleep(span)
		net.Heal()
	case 5:
		net.Lose(faultnet.Down, 1+r.IntN(3), nil)
	}
	return nil
}

// No fault of servers and networks lets two hold at once. When the faults are over, every client
// gets every lock, and nothing is left at any server.
func TestRandomFaults(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	s := newFaultRun(t, func(b driver.Backend) driver.Backend { return b })
	ctx, cancel := context.WithCancel(t.Context())
	workers := s.Run(ctx)
	s.injectFaults(t, 12*time.Second)
	cancel()
	workers.Wait()
	for _, nets := range s.nets {
		for _, net := range nets {
			net.Heal() // losses that have not struck
		}
	}
	for _, c := range s.Clients {
		for _, name := range faultRunNames {
			testkit.UseDespiteErrors(t, c, name)
		}
	}
	testkit.Eventually(t, "nothing left", func() bool {
		for _, n := range s.nodes {
			if out, err := n.Do(append([]string{"EXISTS"}, faultRunNames...)...); err != nil || out != "0" {
				return false
			}
		}
		return true
	})
	h, err := s.Rec.History()
	if err != nil {
		t.Fatal(err)
	}
	linear.Require(t, h, linear.Options{})
}

// The control: a driver that reports renewals and makes none. Without any fault the checks find
// it, by the first hold that outlasts its TTL.
func TestRandomFaultsControl(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	s := newFaultRun(t, broken.Liar)
	ctx, cancel := context.WithTimeout(t.Context(), 6*slack)
	defer cancel()
	if caught, err := s.Violated(ctx); !caught {
		t.Errorf("locks that were never renewed have passed the check: %v", err)
	}
}
