package redislock_test

import (
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// permits asks for units of a semaphore.
func permits(t *testing.T, s driver.Session, units, capacity int64) (driver.Ticket, driver.Verdict) {
	t.Helper()
	r := testkit.Request("a")
	r.Units, r.Capacity = units, capacity
	ticket := s.Ticket(r)
	return ticket, enter(t, ticket)
}

// L1: a waiter behind very many holders examines some of them at a time, so that no script blocks
// the other clients for long, and finds all expired ones: also those that other releases have
// moved meanwhile.
func TestManyHoldersAreSwept(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	const n, most = 2500, 500
	b := testkit.Open(t, server.URL())
	long, short := session(t, b, time.Hour), session(t, testkit.Open(t, server.URL()), 500*time.Millisecond)
	var live []driver.Ticket
	expired := 0
	for i := range n {
		s := long
		if i%25 == 0 || i > n-50 { // spread among the others, and the last ones
			s = short
			expired++
		}
		ticket, v := permits(t, s, 1, n)
		if !v.Held {
			t.Fatalf("permit %d of %d: %+v", i, n, v)
		}
		if s == long {
			live = append(live, ticket)
		}
	}
	waits, v := permits(t, long, int64(expired), n) // all that the expired holders have
	if v.Held {
		t.Fatal("more permits than there are")
	}
	time.Sleep(600 * time.Millisecond)
	for round := 0; !v.Held; round++ {
		before := server.Calls(t, "hget")
		var err error
		v, err = waits.Enqueue(t.Context())
		must(t, err)
		if read := server.Calls(t, "hget") - before; read > 2*most+3*expired {
			t.Errorf("%d fields were read by one request", read)
		}
		if round > 2*n/most+2 {
			t.Fatalf("not granted by %d looks: %+v", round, v)
		}
		if round%2 == 0 { // others go meanwhile, and their slots are filled
			must(t, live[0].Leave(t.Context()))
			live = live[1:]
		}
	}
	list, err := b.List(t.Context(), "a", 0)
	if err != nil || len(list) != len(live)+1 {
		t.Errorf("%d entries, want %d; %v", len(list), len(live)+1, err)
	}
}

// A waiter that is granted in the middle of such a sweep, and dies, is found a TTL later, and not
// when all others could have expired.
func TestGrantDuringSweep(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	const n = 1300
	long := session(t, testkit.Open(t, server.URL()), time.Hour)
	dead := session(t, testkit.Open(t, server.URL()), 250*time.Millisecond)
	for range n - 1 {
		permits(t, long, 1, n)
	}
	permits(t, dead, 1, n) // in the last slot, which is examined first
	brief := session(t, testkit.Open(t, server.URL()), T)
	first, v := permits(t, brief, 1, n)
	waits, behind := permits(t, long, 1, n)
	for round := 0; !v.Held; round++ { // the sweep takes three requests, and may have begun by now
		if round > 500 {
			t.Fatalf("not granted: %+v", v)
		}
		time.Sleep(10 * time.Millisecond)
		if round%5 == 4 {
			_, err := brief.KeepAlive(t.Context()) // it lives until it is granted
			must(t, err)
		}
		var err error
		v, err = first.Enqueue(t.Context())
		must(t, err)
	}
	for end := time.Now().Add(slack); !behind.Held; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("a holder that died still blocks: %+v", behind)
		}
		var err error
		behind, err = waits.Enqueue(t.Context())
		must(t, err)
	}
}
