package httplock_test

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/history"
	"github.com/hasplock/hasp/internal/recordedhold"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/tests/internal/haspserve"
	"github.com/hasplock/hasp/tests/internal/linear"
)

const calm = 30 * time.Second // a TTL that no busy machine lets expire

// S7, S8: the server's answer to each kind of request is lost on its way to the client. A lock is
// acquired once, and a release is confirmed, although the store behind may forget: the server knows
// that it was done.
func TestAnswersLost(t *testing.T) {
	t.Parallel()
	redis := backends.StartRedis(t, backends.RedisOptions{})
	s := haspserve.New(t, redis.URL())
	net := testkit.Proxy(t, s.Addr)
	c := testkit.Client(t, "hasp+http://"+net.Addr(), hasp.WithTTL(calm))
	other := testkit.Client(t, redis.URL())
	testkit.Release(t, testkit.Lock(t, c, "warm")) // the session, and its request for losses, are open
	for range 3 {
		cut := net.Lose(faultnet.Down, 1, faultnet.Contains("PUT /v1/locks/"))
		l := testkit.Lock(t, c, "a")
		<-cut
		if q := testkit.Entries(t, other, "a"); len(q) != 1 || q[0].ID != l.ID() || q[0].Token != l.Token() {
			t.Fatalf("held as %s with token %d, and the store has %v", l.ID(), l.Token(), q)
		}
		cut = net.Lose(faultnet.Down, 1, faultnet.Contains("DELETE /v1/locks/"))
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("release: %v", err)
		}
		<-cut
		if q := testkit.Entries(t, other, "a"); len(q) != 0 {
			t.Errorf("left behind: %v", q)
		}
	}
	held := testkit.Lock(t, other, "w")
	cut := net.Lose(faultnet.Down, 1, faultnet.Contains("PUT /v1/locks/"))
	got := testkit.Queued(t, c, "w")
	<-cut
	if q := testkit.Entries(t, other, "w"); len(q) != 2 {
		t.Errorf("one holder and one waiter, and the store has %v", q)
	}
	testkit.Release(t, held)
	testkit.Granted(t, got)
}

// L3, S5, L2: one of the two networks is silent. A call returns with its context, a holder gives
// its lock up before another is granted it, and when the network is back it locks again.
func TestSilence(t *testing.T) {
	for _, where := range []string{"before the server", "behind the server"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			redis := backends.StartRedis(t, backends.RedisOptions{})
			behind := testkit.Proxy(t, redis.Addr)
			s := haspserve.New(t, "redis://"+behind.Addr())
			before := testkit.Proxy(t, s.Addr)
			net := map[string]*faultnet.Proxy{"before the server": before, "behind the server": behind}[where]
			c := testkit.Client(t, "hasp+http://"+before.Addr(), hasp.WithTTL(faultTTL))
			rec := history.New()
			held := make(chan struct{})
			through := recordedhold.Hold{Client: c, Who: "through the server", Name: "a", For: time.Hour, TTL: faultTTL, Begin: func(recordedhold.Lease) { close(held) }}
			ended := make(chan error, 1)
			go func() { ended <- through.Run(ctx(t), rec) }()
			testkit.Await(t, "the lock through the server", held)
			net.Partition()
			short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			began := time.Now()
			if _, err := c.Mutex("b").Lock(short); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("lock: %v", err)
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("a call whose context ended has returned after %s", took)
			}
			beside := recordedhold.Hold{Client: testkit.Client(t, redis.URL()), Who: "beside it", Name: "a", For: time.Second, TTL: faultTTL}
			if err := beside.Run(ctx(t), rec); err != nil {
				t.Error(err)
			}
			net.Heal()
			if err := testkit.Await(t, "the end of the lost hold", ended); err != nil {
				t.Error(err)
			}
			testkit.Release(t, testkit.LockDespiteErrors(t, c, "a"))
			h, err := rec.History()
			if err != nil {
				t.Fatal(err)
			}
			linear.Require(t, h, linear.Options{Fencing: true})
		})
	}
}

// A server that serves another store than before, at the same address, is not mistaken for it.
func TestOtherStore(t *testing.T) {
	t.Parallel()
	redis := backends.SharedRedis(t)
	s := haspserve.New(t, redis.URL())
	c := testkit.Client(t, s.URL(), hasp.WithTTL(calm))
	s.Kill()
	with := url.Values{"strategy": {"setnx"}}
	s.Store = redis.URL() + "?" + with.Encode()
	s.Start()
	if _, err := c.Mutex("other").Lock(ctx(t)); !errors.Is(err, hasp.ErrRefused) {
		t.Errorf("lock: %v", err)
	}
	again := testkit.Client(t, s.URL(), hasp.WithTTL(calm))
	if traits := again.Backend().Traits(); traits.FIFO || slices.Contains([]bool{traits.Shared, traits.Counting}, true) {
		t.Errorf("opened again it has %+v", traits)
	}
}
