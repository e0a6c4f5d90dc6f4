package caslock_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/caslock"
)

// timed notes when a store without a watch is read.
type timed struct {
	caslock.Store
	mu    sync.Mutex
	reads []time.Time
}

func (s *timed) Load(ctx context.Context, name string) (caslock.Record, caslock.Version, error) {
	s.mu.Lock()
	s.reads = append(s.reads, time.Now())
	s.mu.Unlock()
	return s.Store.Load(ctx, name)
}

// since returns when there were reads from t on.
func (s *timed) since(t time.Time) []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.reads), func(at time.Time) bool { return at.Before(t) })
}

// A waiter reads once a second at first, and at most so often, then less and less until it reads
// six times in a holder's TTL; with another holder it is quick again.
func TestPolling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = time.Minute
		c := newContents()
		client := func(s caslock.Store) *hasp.Client {
			client, err := hasp.New(caslock.New(s, nil), hasp.WithTTL(ttl))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { client.Close() })
			return client
		}
		holder, reads := client(hashed{c, nil}), &timed{Store: hashed{c, nil}}
		waiter := client(reads)
		held, err := holder.Mutex("a").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		got := make(chan *hasp.Lease, 1)
		go func() {
			l, err := waiter.Mutex("a").Lock(t.Context())
			if err != nil {
				t.Error(err)
			}
			got <- l
		}()
		time.Sleep(10 * time.Minute)
		first := reads.since(began)
		// Its Enqueue and its follower read at once, and after twice the TTL it asks by itself.
		for i := 2; i < len(first) && first[i].Sub(began) < ttl; i++ {
			if pause := first[i].Sub(first[i-1]); pause < time.Second || pause > ttl/6*5/4 {
				t.Errorf("read %d after a pause of %s", i, pause)
			}
		}
		if n := len(first); first[4].Sub(began) > 6*time.Second || n > 75 {
			t.Errorf("%d reads in ten minutes, the fifth after %s", n, first[4].Sub(began))
		}
		// One reads all the time in the last minute, while the other asks once perhaps.
		if n := len(reads.since(began.Add(9 * time.Minute))); n < 4 || n > 8 {
			t.Errorf("%d reads in the last minute, want six", n)
		}
		if err := held.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		released := time.Now()
		next, err := holder.Mutex("a").TryLock(t.Context()) // another entry: before the waiter reads
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(ttl / 4)
		if after := reads.since(released); len(after) < 3 {
			t.Errorf("%d reads in a quarter of a TTL after the holder has changed", len(after))
		}
		if err := next.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		lease := <-got
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
