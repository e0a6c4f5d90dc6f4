package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/broken"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/history"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// A connection goes dead without a word, and new ones work: gRPC's own pings would take
// thirteen seconds to find out. The control is a client of the user's own without pings,
// which hasp cannot help: it never finds out.
func TestSilentConnection(t *testing.T) {
	t.Parallel()
	e := backends.SharedEtcd(t)
	silent := func(t *testing.T, bad func(addr string) *hasp.Client, holds bool) (x handOver, disturbed *bool) {
		p := testkit.Proxy(t, e.Addr)
		x, disturbed = handOver{holder: testkit.Client(t, storeURL([]*backends.Etcd{e}), hasp.WithTTL(faultTTL)), waiter: bad(p.Addr()), name: t.Name()}, new(bool)
		if holds {
			x.holder, x.waiter = x.waiter, x.holder
		}
		x.meanwhile = func() {
			// An answer is lost, then a request, and all that follows them on that connection.
			p.Lose(faultnet.Down, math.MaxInt, nil)
			p.Lose(faultnet.Up, math.MaxInt, nil)
			// A client whose session has expired meanwhile, on a busy machine, sends nothing any
			// more.
			enough, cancel := context.WithTimeout(ctx(t), 5*faultTTL)
			defer cancel()
			*disturbed = p.WaitFor(enough, func(s faultnet.Stats) bool { return s.Up.Lost > 0 && s.Down.Lost > 0 }) == nil
		}
		return x, disturbed
	}
	ours := func(addr string) *hasp.Client { return testkit.Client(t, "etcd://"+addr, hasp.WithTTL(faultTTL)) }
	for _, holds := range []bool{true, false} {
		t.Run(fmt.Sprintf("holder=%t", holds), func(t *testing.T) {
			t.Parallel()
			for range 5 {
				x, disturbed := silent(t, ours, holds)
				x.passes(t)
				if *disturbed {
					return
				}
			}
			t.Error("no connection was ever silent")
		})
	}
	t.Run("control", func(t *testing.T) {
		t.Parallel()
		for range 3 { // on a busy machine the lock may pass on before the silence begins
			x, _ := silent(t, func(addr string) *hasp.Client { return onClient(t, client(t, addr), hasp.WithTTL(faultTTL)) }, false)
			x.within = 2 * faultTTL
			if wrong := x.run(t); len(wrong) > 0 {
				return
			}
		}
		t.Error("a client without pings has found out: this test shows nothing")
	})
}

// What was sent during a partition arrives when it is over, long after all callers have
// returned: no lock is granted twice, nothing stays.
func TestHeldPartition(t *testing.T) {
	t.Parallel()
	for _, wrong := range heldPartition(t, "partition", func(url string) *hasp.Client { return testkit.Client(t, url, hasp.WithTTL(faultTTL)) }) {
		t.Error(wrong)
	}
}

// The control believes in its lock as long as no message contradicts.
func TestHeldPartitionSees(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	wrong := heldPartition(t, "partition-liar", func(url string) *hasp.Client {
		return flawed(t, url, broken.Liar, hasp.WithTTL(faultTTL))
	})
	if !strings.Contains(strings.Join(wrong, "\n"), "exclusion") {
		t.Errorf("a client that believes for ever was not noticed: %q", wrong)
	}
}

// heldPartition returns what was wrong with the client that it cuts off.
func heldPartition(t *testing.T, name string, bad func(url string) *hasp.Client) (wrong []string) {
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	e := backends.SharedEtcd(t)
	p := testkit.Proxy(t, e.Addr)
	rec := history.New()
	good := recordedClient{testkit.Client(t, storeURL([]*backends.Etcd{e}), hasp.WithTTL(steady)), "good", rec}
	cut := recordedClient{bad("etcd://" + p.Addr()), "cut", rec}
	l := testkit.Must[*recordedHold](t)(cut.lock(ctx(t), name))
	p.Partition()
	short, cancel := context.WithTimeout(ctx(t), time.Second)
	defer cancel()
	began := time.Now()
	if _, err := cut.lock(short, name+"-other"); !errors.Is(err, context.DeadlineExceeded) {
		complain("lock in a partition: %v", err)
	}
	if took := time.Since(began); took > soon {
		complain("a cancelled lock took %s", took)
	}
	next := testkit.Must[*recordedHold](t)(good.lock(ctx(t), name))
	time.Sleep(100 * time.Millisecond) // who still believes now says so
	p.Heal()
	testkit.Eventually(t, "the cut client locks again", func() bool {
		g, err := cut.lock(ctx(t), name+"-other")
		return err == nil && g.release(ctx(t)) == nil
	})
	testkit.Eventually(t, "all that was held has been delivered", func() bool {
		s := p.Stats()
		return s.Up.Waiting() == 0 && s.Down.Waiting() == 0
	})
	if !next.Held() {
		complain("what came late took the next holder's lock: %v", next.Err())
	}
	for _, name := range []string{name, name + "-other"} {
		for _, left := range entries(t, good.Backend(), name) {
			if left.ID != next.ID() {
				complain("left: %+v", left)
			}
		}
	}
	_ = l.release(ctx(t)) // the checker knows the right answer
	if err := next.release(ctx(t)); err != nil {
		complain("release: %v", err)
	}
	return append(wrong, violations(t, rec)...)
}

// L7: a server that is down is not hammered, however many want a lock. The control is a
// client of etcd's with a short back-off.
func TestDeadServerIsNotHammered(t *testing.T) {
	t.Parallel()
	const most = 10 // dials in a second
	ours := dialsOfDead(t, "hammer", func(addr string) *hasp.Client {
		return testkit.Client(t, "etcd://"+addr, hasp.WithTTL(faultTTL))
	})
	if ours > most {
		t.Errorf("%.1f dials in a second", ours)
	}
	if rate := dialsOfDead(t, "hammer-control", func(addr string) *hasp.Client {
		hasty := grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1, MaxDelay: time.Millisecond},
			MinConnectTimeout: 20 * time.Second,
		})
		return onClient(t, client(t, addr, hasty), hasp.WithTTL(faultTTL))
	}); rate <= most && rate < 3*ours { // a busy machine cannot make many
		t.Errorf("the control makes %.1f dials in a second, and we %.1f: this test shows nothing", rate, ours)
	}
}

// dialsOfDead has 64 goroutines want a lock of a server that resets all connections, for
// two TTLs, and returns how many dials that makes in a second.
func dialsOfDead(t *testing.T, name string, connect func(addr string) *hasp.Client) float64 {
	t.Helper()
	p := testkit.Proxy(t, backends.SharedEtcd(t).Addr)
	c := connect(p.Addr())
	l := testkit.Lock(t, c, name)
	waiting, cancel := context.WithCancel(ctx(t))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for i := range 64 {
		wg.Go(func() {
			for waiting.Err() == nil {
				if l, err := c.Mutex(fmt.Sprint(name, i%8)).Lock(waiting); err == nil {
					l.Release(waiting)
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	if err := p.Rebuff(); err != nil {
		t.Fatal(err)
	}
	p.Reset()
	before, began := p.Stats().Accepted, time.Now()
	time.Sleep(2 * faultTTL)
	dials, took := p.Stats().Accepted-before, time.Since(began)
	if l.Held() {
		t.Error("held by a client that has not reached its server for two TTLs")
	}
	return float64(dials) / took.Seconds()
}

// A caller without a deadline is never told of one, however silent the server is: programs take
// that for a lock that is busy.
func TestSilenceIsNoDeadline(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	for what, opened := range map[string]bool{"open": true, "first use": false} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := testkit.Proxy(t, backends.SharedEtcd(t).Addr)
			c := testkit.Client(t, "etcd://"+p.Addr(), hasp.WithTTL(faultTTL))
			if opened {
				testkit.Release(t, testkit.Lock(t, c, "silence"))
			}
			p.Partition()
			for _, lock := range []func(context.Context) (*hasp.Lease, error){c.Mutex("silence").Lock, c.Mutex("silence").TryLock} {
				_, err := lock(context.Background())
				t.Log(err)
				if err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
					t.Errorf("a lock at a silent server: %v", err)
				}
			}
		})
	}
}
