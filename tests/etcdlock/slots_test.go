package etcdlock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// etcd remembers each key until it is compacted, and walks over all of a name at each read
// of it. So a session uses one key for one entry after the other.
func TestKeysAreUsedAgain(t *testing.T) {
	t.Parallel()
	e := backends.StartEtcd(t, backends.EtcdOptions{})
	c, raw := testkit.Client(t, storeURL([]*backends.Etcd{e})), client(t, e.Addr)
	seen := map[string]bool{}
	for i := range 50 {
		l := testkit.Lock(t, c, "again")
		for _, k := range keys(t, raw, "hasp/again/") {
			seen[k] = true
		}
		c.Mutex("again").TryLock(ctx(t)) // refused, and leaves its key as well
		if i%2 == 0 {
			short, cancel := context.WithTimeout(ctx(t), 5*time.Millisecond)
			c.Mutex("again").Lock(short) // gives up
			cancel()
		}
		testkit.Release(t, l)
		testkit.Eventually(t, "nothing is left", func() bool { return len(keys(t, raw, "hasp/again/")) == 0 })
	}
	// Two or three at a time: one whose Lock was cancelled may not yet be known to have left.
	if len(seen) > 10 {
		t.Errorf("50 locks used %d keys: %v", len(seen), seen)
	}
}

// The trap that opens then: one entry of a session must never be taken for another that
// used its key before, or at the same time. Many entries of one session come and go.
func TestEntriesOfOneSessionStayApart(t *testing.T) {
	t.Parallel()
	b := backend(t, storeURL([]*backends.Etcd{backends.SharedEtcd(t)}))
	s := testkit.Session(t, b, calm, nil)
	var mu sync.Mutex
	holding, last := 0, uint64(0)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 25 {
				k := s.Ticket(whole("apart", fmt.Sprintf("apart-%d-%d", i, j)))
				v, err := k.Enqueue(ctx(t))
				for err == nil && !v.Held {
					v, err = k.Wait(ctx(t))
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if holding++; holding > 1 || v.Token <= last {
					t.Errorf("%d hold, token %d after %d", holding, v.Token, last)
				}
				last = v.Token
				mu.Unlock()
				if again, err := k.Enqueue(ctx(t)); err != nil || again.Token != v.Token || !again.Held {
					t.Errorf("asked again: %+v, %v; at first %+v", again, err, v)
				}
				mu.Lock()
				holding--
				mu.Unlock()
				if err := k.Leave(ctx(t)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if left := entries(t, b, "apart"); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
}
