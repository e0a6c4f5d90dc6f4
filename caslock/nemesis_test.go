package caslock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// A schedule has three clients want two locks for some minutes of fake time, while their clocks step,
// and their requests and answers are slow, late, lost, doubled, refused or never carried, by a seed.
// The judge looks at each write that the store does.

type schedule struct {
	seed  uint64
	watch bool
	*simulation
	hosts []*host
	rng   *rand.Rand // of the nemesis; each client has another
}

// run makes one schedule, and returns what the judge has found and how often a lock was had.
func run(t *testing.T, seed uint64, f faulty) (wrong []string, grants int) {
	synctest.Test(t, func(t *testing.T) {
		s := &schedule{seed: seed, watch: seed%2 == 0, simulation: newSimulation(10 * time.Second), rng: rand.New(rand.NewPCG(seed, 0))}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var working sync.WaitGroup
		var clients []*hasp.Client
		for i := range 3 {
			h := s.simulation.host(fmt.Sprint("host", i), s.watch, f)
			c, b := h.client(t)
			s.hosts, clients = append(s.hosts, h), append(clients, c)
			rng := rand.New(rand.NewPCG(seed, uint64(i+1)))
			for w := range 2 {
				name := fmt.Sprint("lock", w)
				rng := rand.New(rand.NewPCG(rng.Uint64(), 0))
				if i == 2 && w == 1 {
					working.Go(func() { h.drive(ctx, t, rng, b, name) })
				} else {
					working.Go(func() { h.work(ctx, rng, c, name) })
				}
			}
		}
		s.disturb(ctx)
		for _, h := range s.hosts {
			h.setFate(func(string, string) fate { return fate{} })
			close(h.down)
		}
		working.Wait()
		for _, c := range clients {
			c.Close()
		}
		wrong, grants = s.wrong, s.grants
	})
	return wrong, grants
}

// work takes a lock again and again, and holds it, at times for longer than a TTL.
func (h *host) work(ctx context.Context, rng *rand.Rand, c *hasp.Client, name string) {
	pause := func(most time.Duration) {
		sleep(ctx, time.Duration(rng.Int64N(int64(most))))
	}
	for ctx.Err() == nil {
		pause(2 * time.Second)
		within, cancel := context.WithTimeout(ctx, time.Duration(rng.Int64N(int64(30*time.Second))))
		l, err := h.lock(within, c, name)
		cancel()
		if err != nil {
			continue
		}
		pause([]time.Duration{time.Second, 8 * time.Second, 25 * time.Second}[rng.IntN(3)])
		within, cancel = context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		l.Release(within)
		cancel()
	}
}

// drive is work of one that uses the driver without the core, and renews too late at times: there the
// driver alone says that it is over.
func (h *host) drive(ctx context.Context, t *testing.T, rng *rand.Rand, b *backend, name string) {
	var over sync.Map
	session, _, err := (&judged{b, h}).Open(ctx, driver.SessionOptions{TTL: h.ttl, Gone: func(id string, _ error) { over.Store(id, true) }})
	if err != nil {
		t.Error(err)
		return
	}
	for i := 0; ctx.Err() == nil; i++ {
		id := fmt.Sprint("driven-", i)
		ticket := session.Ticket(driver.Request{Name: name, ID: id, Units: driver.Whole, Capacity: driver.Whole})
		within, cancel := context.WithTimeout(ctx, 10*time.Second)
		v, err := ticket.Enqueue(within)
		for err == nil && !v.Held {
			v, err = ticket.Wait(within)
		}
		for range rng.IntN(5) {
			sleep(ctx, time.Duration(rng.Int64N(int64(h.ttl*3/2))))
			if _, gone := over.Load(id); gone {
				break
			}
			renewing, stop := context.WithTimeout(ctx, h.ttl/3)
			session.KeepAlive(renewing)
			stop()
		}
		cancel()
		within, cancel = context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		ticket.Leave(within)
		cancel()
	}
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	session.Close(within)
}

// disturb does one thing after another.
func (s *schedule) disturb(ctx context.Context) {
	rng := s.rng
	for ctx.Err() == nil {
		h := s.hosts[rng.IntN(len(s.hosts))]
		switch rng.IntN(4) {
		case 0:
			h.setClock(time.Duration(rng.Int64N(int64(20*time.Minute))) - 10*time.Minute)
		case 1:
			h.setFate(func(string, string) fate { return fate{} })
		default:
			h.setFate(s.fates())
		}
		sleep(ctx, time.Duration(rng.Int64N(int64(6*time.Second))))
	}
}

// fates are those of one client's requests until the next disturbance: one of eight kinds for some of
// them, and a network that is more or less slow for the others.
func (s *schedule) fates() func(op, name string) fate {
	rng := rand.New(rand.NewPCG(s.rng.Uint64(), 0))
	upTo := func(d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }
	kind, share, slow := rng.IntN(8), rng.IntN(4)+1, 1+upTo(100*time.Millisecond)
	only := []string{"", "", "load", "swap"}[rng.IntN(4)]
	name := []string{"", "", "lock0", "lock1"}[rng.IntN(4)]
	return func(op, n string) fate {
		f := fate{out: upTo(slow), back: upTo(slow)}
		if rng.IntN(4) >= share || only != "" && op != only || name != "" && n != name {
			return f
		}
		switch kind {
		case 0: // it arrives late, perhaps after the lock is another's
			f.out = upTo(15 * time.Second)
		case 1: // the answer does
			f.back = upTo(15 * time.Second)
		case 2:
			f.back = never
		case 3:
			f.out = never
		case 4: // a proxy sends it twice
			f.again = 1 + upTo(12*time.Second)
		case 5:
			f.fails = true
		case 6:
			f.out, f.deaf = never, true
		case 7:
			f.back, f.deaf = never, true
		}
		return f
	}
}

// No two clients hold at once, none is told late, and no record ends early, if anything happens between
// clients and store. HASP_CASLOCK_SCHEDULES sets how many schedules there are.
func TestNemesis(t *testing.T) {
	n := 200
	if text := os.Getenv("HASP_CASLOCK_SCHEDULES"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	began, grants := time.Now(), 0
	for seed := range uint64(n) {
		wrong, g := run(t, seed, faulty{})
		grants += g
		for _, w := range wrong {
			t.Errorf("seed %d: %s", seed, w)
		}
	}
	took := time.Since(began)
	t.Logf("%d schedules in %s, %.0f a second, with %d grants", n, took, float64(n)/took.Seconds(), grants)
	if grants < 10*n {
		t.Errorf("%d grants in %d schedules: it shows too little", grants, n)
	}
}

// The judge catches drivers that are broken on purpose.
func TestNemesisControls(t *testing.T) {
	for what, f := range map[string]faulty{
		"freed before T: the wall clock is believed": {believesWall: true},
		"freed before Gone":                          {tellsLate: 300 * time.Millisecond},
	} {
		caught := 0
		for seed := range uint64(100) {
			if wrong, _ := run(t, seed, f); len(wrong) > 0 {
				if caught++; caught == 1 {
					t.Logf("%s: seed %d: %s", what, seed, wrong[0])
				}
			}
		}
		t.Logf("%s: caught by %d of 100", what, caught)
		if caught == 0 {
			t.Errorf("%s: not caught", what)
		}
	}
}

// An entry whose Enqueue was done and not answered has its time counted from there, although a renewal
// has succeeded since: it is trusted no longer, when it is found, and cannot be renewed.
func TestPendingIsLate(t *testing.T) {
	overlap := func(f faulty) (wrong []string) {
		synctest.Test(t, func(t *testing.T) {
			s := newSimulation(10 * time.Second)
			a, b := s.host("a", true, f), s.host("b", true, faulty{})
			ca, _ := a.client(t)
			cb, _ := b.client(t)
			if l, err := a.lock(t.Context(), ca, "n"); err != nil { // the record is there from now on
				t.Fatal(err)
			} else if err := l.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			writes := 0
			a.setFate(func(op, _ string) fate {
				if op != "swap" {
					return fate{}
				}
				if writes++; writes == 1 {
					return fate{back: never}
				}
				return fate{fails: true}
			})
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			var all sync.WaitGroup
			all.Go(func() { a.lock(ctx, ca, "n") })
			all.Go(func() {
				time.Sleep(time.Second / 2)
				b.lock(ctx, cb, "n")
			})
			time.Sleep(6 * time.Second) // it was found when its write was given up
			a.setFate(func(string, string) fate { return fate{out: never} })
			<-ctx.Done()
			a.setFate(func(string, string) fate { return fate{} })
			close(a.down)
			close(b.down)
			all.Wait()
			ca.Close()
			cb.Close()
			wrong = s.wrong
		})
		return wrong
	}
	for _, w := range overlap(faulty{}) {
		t.Error(w)
	}
	if len(overlap(faulty{forgetsPending: true})) == 0 {
		t.Error("a driver that does not name it late is not caught: this test shows nothing")
	}
}
