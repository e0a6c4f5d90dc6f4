package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// A renewal without enough time keeps its progress: the next one continues with the locks that were
// renewed longest ago, and the result is never more than any lock has left. (All progress was lost
// each time, until all locks were lost.) Three of five networks let a third of a renewal through to
// each call: three are the least, however fast the machine is.
func TestRenewalGoesOn(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	net := behindProxies(t)
	const n, ttl = 3000, 10 * time.Minute
	gone := make(chan string, n)
	s := session(t, testkit.Open(t, net.URL()+"?node_timeout=10s"), ttl, func(id string, _ error) { gone <- id }) // a busy machine takes its turns
	for i := range n {
		testkit.Held(t, s.Ticket(testkit.Request(fmt.Sprint("n", i))))
	}
	slow := net.proxies[:3]
	var third int64
	testkit.Until(t, "a whole renewal", func() error {
		var before [3]int64
		for i, p := range slow {
			before[i] = p.Stats().Up.Received
		}
		_, err := s.KeepAlive(t.Context())
		for i, p := range slow {
			third = max(third, (p.Stats().Up.Received-before[i])/3)
		}
		return err
	})
	all, cut := time.Now(), 0 // each must be renewed after this moment
	for wait, end := 50*time.Millisecond, time.Now().Add(6*slack); ; wait += wait / 4 {
		began := time.Now()
		granted, err, whole := renewedBy(t, slow, s, third, wait)
		if !whole {
			cut++
		}
		if granted > ttl {
			t.Fatalf("granted %s", granted)
		}
		// The time left counts from before the call: that tells the oldest renewal.
		oldest, known := granted, err == nil
		if partial := new(driver.PartialRenewal); errors.As(err, &partial) {
			oldest, known = slices.Min(slices.Collect(maps.Values(partial.Late))), true
		}
		if known && began.Add(oldest-ttl).After(all) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("not through with all of them in %s: %s, %v", 6*slack, granted, err)
		}
	}
	if cut < 2 {
		t.Errorf("%d calls were cut off: nothing was slow", cut)
	}
	if len(gone) > 0 {
		t.Errorf("%s is said to be gone", <-gone)
	}
}

// renewedBy is one renewal, of which the slow networks let most bytes through each. If that is not
// enough, its time is over after the answers have had time to come, and it is not whole. What was
// held arrives before the next one.
func renewedBy(t *testing.T, slow []*faultnet.Proxy, s driver.Session, most int64, wait time.Duration) (granted time.Duration, err error, whole bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var stuck, cutting sync.WaitGroup
	for _, p := range slow {
		p.Set(faultnet.Up, faultnet.Rule{Most: most})
		before := p.Stats().Up.Delivered
		stuck.Go(func() {
			_ = p.WaitFor(ctx, func(s faultnet.Stats) bool { return s.Up.Delivered-before >= most && s.Up.Waiting() > 0 })
		})
	}
	cutting.Go(func() {
		stuck.Wait()
		select {
		case <-time.After(wait):
			cancel()
		case <-ctx.Done():
		}
	})
	granted, err = s.KeepAlive(ctx)
	whole = ctx.Err() == nil
	cancel()
	cutting.Wait()
	for _, p := range slow {
		p.Set(faultnet.Up, faultnet.Rule{})
		testkit.Eventually(t, "what was held arrives", func() bool { return p.Stats().Up.Waiting() == 0 })
	}
	return granted, err, whole
}

// A lock that is on few servers, one of which is stopped, does not prevent the renewal of others:
// the renewal says that it is late, and how much time it has left. (All locks of the client were
// lost.) If the server resumes in time, no lock is lost.
func TestRenewalOfTheOthers(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	nodes := backends.StartRedisNodes(t, 5, backends.RedisOptions{})
	const ttl = 2 * time.Minute
	s := session(t, testkit.Open(t, urlOf(nodes)+"?node_timeout=3s"), ttl, func(id string, err error) { t.Errorf("%s is gone: %v", id, err) })
	take := func(name string) string {
		t.Helper()
		r := testkit.Request(name)
		testkit.Held(t, s.Ticket(r))
		return r.ID
	}
	take("first")
	// At two servers another client blocks one lock: it is on three.
	for _, n := range nodes[3:] {
		do(t, n, "SET", "few", "another client's", "PX", "600000")
	}
	few := take("few")
	for i := range 300 {
		take(fmt.Sprint("n", i))
	}
	testkit.Eventually(t, "the last lock on all servers", everywhere(t, nodes, "n299"))
	if err := nodes[0].Pause(); err != nil {
		t.Fatal(err)
	}
	var partial *driver.PartialRenewal
	for range 2 { // the second has new connections
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		granted, err := s.KeepAlive(ctx)
		cancel()
		if !errors.As(err, &partial) || partial.Granted != ttl || len(partial.Late) != 1 {
			t.Fatalf("%s, %v, want a partial renewal without the lock on three servers", granted, err)
		}
		if left, ok := partial.Late[few]; !ok || left > ttl || left < ttl/2 {
			t.Errorf("late is %v, want %s", partial.Late, few)
		}
	}
	if err := nodes[0].Resume(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "all are renewed", func() bool {
		granted, err := s.KeepAlive(t.Context())
		return err == nil && granted == ttl
	})
}
