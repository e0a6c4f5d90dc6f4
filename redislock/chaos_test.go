package redislock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/broken"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/history"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/internal/witness"
)

// storm is several clients, each behind a network of its own, on one server, and what they
// believed of two locks while server and networks were harmed.
type storm struct {
	server  *backends.Redis
	nets    []*faultnet.Proxy
	clients []*hasp.Client
	rec     *history.Recorder
}

const stormClients = 4

// newStorm starts a server that forgets nothing when it is killed, since no lock can
// outlive the other kind. wrap may break the driver of each client.
func newStorm(t *testing.T, wrap func(driver.Backend) driver.Backend) *storm {
	t.Helper()
	s := &storm{
		server: backends.StartRedis(t, backends.RedisOptions{AppendOnly: true, AppendFsync: "always"}),
		rec:    history.New(),
	}
	for range stormClients {
		net := testkit.Proxy(t, s.server.Addr)
		c := testkit.ClientOn(t, wrap(testkit.Open(t, "redis://"+net.Addr())), hasp.WithTTL(T))
		s.nets, s.clients = append(s.nets, net), append(s.clients, c)
	}
	return s
}

// work has every client take both locks, over and over, until ctx ends.
func (s *storm) work(ctx context.Context) *sync.WaitGroup {
	var wg sync.WaitGroup
	for i, c := range s.clients {
		for _, name := range []string{"a", "b"} {
			wg.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					s.once(ctx, c, fmt.Sprint("client ", i), name, n)
				}
			})
		}
	}
	return &wg
}

// once takes a lock. Every fifth hold, the first among them, outlasts a TTL: it needs
// renewals, or is lost.
func (s *storm) once(ctx context.Context, c *hasp.Client, who, name string, n int) {
	hold := time.Duration(rand.Int64N(int64(20 * time.Millisecond)))
	if n%5 == 0 {
		hold = 3 * T / 2
	}
	if (witness.Turn{Client: c, Who: who, Name: name, Hold: hold, TTL: T}).Take(ctx, s.rec) != nil {
		time.Sleep(20 * time.Millisecond) // the server is away
	}
}

// rage does one harm after another until the time is over, and leaves everything whole.
func (s *storm) rage(t *testing.T, lasts time.Duration) {
	t.Helper()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	for end := time.Now().Add(lasts); time.Now().Before(end); {
		net := s.nets[r.IntN(len(s.nets))]
		span := T/10 + time.Duration(r.Int64N(int64(3*T/2)))
		switch r.IntN(7) {
		case 0: // killed, and away for a while
			must(t, s.server.Kill())
			time.Sleep(span / 4)
			must(t, s.server.Restart())
		case 1:
			must(t, s.server.Pause())
			time.Sleep(span)
			must(t, s.server.Resume())
		case 2:
			do(t, s.server, "CLIENT", "KILL", "TYPE", "normal")
		case 3: // every message of the moment is lost
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

// Whatever happens to server and networks, no two hold at once, and tokens follow the order
// of the grants. When it is over, every client gets every lock.
func TestStorm(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	s := newStorm(t, whole)
	ctx, cancel := context.WithCancel(t.Context())
	workers := s.work(ctx)
	s.rage(t, 12*time.Second)
	cancel()
	workers.Wait()
	for _, c := range s.clients {
		for _, name := range []string{"a", "b"} {
			must(t, testkit.LockDespiteErrors(t, c, name).Release(t.Context()))
		}
	}
	h, err := s.rec.History()
	must(t, err)
	history.Require(t, h, history.Options{Fencing: true})
}

// The control: a driver that says that it has renewed and has not. Without any harm done
// the judges must see it, by the first hold that outlasts its TTL.
func TestStormControl(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	s := newStorm(t, broken.Liar)
	ctx, cancel := context.WithTimeout(t.Context(), 2*slack)
	defer cancel()
	workers := s.work(ctx)
	found := false
	for !found && ctx.Err() == nil {
		time.Sleep(T / 2)
		h, err := s.rec.History()
		must(t, err)
		found = len(history.Exclusion(h)) > 0
	}
	cancel()
	workers.Wait()
	if !found {
		t.Error("locks that were never renewed have passed the judges")
	}
}
