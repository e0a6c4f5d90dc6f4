package redislock_test

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// fillQueue makes n entries of one session in one queue, the first of which hold.
func fillQueue(t *testing.T, s driver.Session, name string, n int, units, capacity int64) (ids []string) {
	t.Helper()
	for i := range n {
		r := testkit.Request(name)
		r.Units, r.Capacity, r.Value = units, capacity, []byte(fmt.Sprint("value ", i))
		enter(t, s.Ticket(r))
		ids = append(ids, r.ID)
	}
	return ids
}

// outputOf is how many bytes the server sends while fn runs, and for one INFO.
func outputOf(t *testing.T, server *backends.Redis, fn func()) int {
	t.Helper()
	sent := func() int {
		m := regexp.MustCompile(`total_net_output_bytes:(\d+)`).FindStringSubmatch(do(t, server, "INFO", "stats"))
		n, _ := strconv.Atoi(m[1])
		return n
	}
	before := sent()
	fn()
	return sent() - before
}

// A client that asks for the leader reads the leader's entry, and not those of all candidates.
// (With ten thousand candidates each answer was 2.6 MB.) The control is the whole list.
func TestFrontOfTheQueue(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	b := testkit.Open(t, server.URL())
	s := session(t, b, time.Hour)
	const n = 1000
	ids := fillQueue(t, s, "a", n, driver.Whole, driver.Whole)
	var first, all []driver.Entry
	var err error
	for range 2 { // the first request sends the script to the server
		if sent := outputOf(t, server, func() { first, err = b.List(t.Context(), "a", 1) }); sent > 20_000 {
			t.Errorf("%d bytes for the first of %d", sent, n)
		}
		must(t, err)
	}
	if sent := outputOf(t, server, func() { all, err = b.List(t.Context(), "a", 0) }); err != nil || len(all) != n || sent < 50*n {
		t.Fatalf("%d entries in %d bytes, %v", len(all), sent, err)
	}
	if len(first) != 1 || first[0].ID != ids[0] || first[0].Seq != all[0].Seq || string(first[0].Value) != "value 0" || first[0].Capacity != driver.Whole {
		t.Errorf("the first is %+v", first)
	}
	do(t, server, "HDEL", "hasp:{a}", "w:3", "e:"+ids[3]) // an empty place, as a leave makes it
	ids = append(ids[:3], ids[4:]...)
	some, err := b.List(t.Context(), "a", 5)
	if err != nil || len(some) != 5 {
		t.Fatalf("%+v, %v", some, err)
	}
	for i, e := range some {
		if e.ID != ids[i] || len(e.Value) == 0 {
			t.Errorf("entry %d is %+v", i, e)
		}
	}

	// Holders are in no order; the oldest are the first.
	ids = fillQueue(t, s, "sem", 20, 1, 10)
	for _, limit := range []int{1, 3, 12, 20, 50} {
		list, err := b.List(t.Context(), "sem", limit)
		if err != nil || len(list) != min(limit, 20) {
			t.Fatalf("%d of %d: %+v, %v", limit, len(ids), list, err)
		}
		for i, e := range list {
			if e.ID != ids[i] {
				t.Errorf("%d of %d: entry %d is %+v", limit, len(ids), i, e)
			}
		}
	}
	for name, want := range map[string]int{"empty": 0, "alone": 1} {
		if want > 0 {
			r := testkit.Request(name)
			_, err := s.Ticket(r).Enqueue(t.Context())
			must(t, err)
		}
		if list, err := b.List(t.Context(), name, 1); err != nil || len(list) != want {
			t.Errorf("%s: %+v, %v", name, list, err)
		}
	}
	do(t, server, "HSET", "hasp:{theirs}", "x", "y")
	if _, err := b.List(t.Context(), "theirs", 1); !errors.Is(err, driver.ErrMismatch) {
		t.Errorf("what hasp did not write: %v", err)
	}
}

// A wrong capacity is refused by the first live entry. (The script read all waiters, and blocked
// all other clients meanwhile.) Expired entries block no one: when all have expired, the name is
// free for another capacity.
func TestWrongCapacity(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	s := session(t, testkit.Open(t, server.URL()), time.Hour)
	fillQueue(t, s, "a", 500, 1, 20)
	wrong := func(name string) error {
		r := testkit.Request(name)
		r.Units, r.Capacity = 1, 7
		_, err := s.Ticket(r).Enqueue(t.Context())
		return err
	}
	before := server.Calls(t, "hget")
	if err := wrong("a"); !errors.Is(err, driver.ErrMismatch) {
		t.Errorf("another capacity: %v", err)
	}
	if n := server.Calls(t, "hget") - before; n > 10 {
		t.Errorf("%d fields were read to refuse it", n)
	}

	const ttl = 2 * time.Second
	brief := session(t, testkit.Open(t, server.URL()), ttl)
	fillQueue(t, brief, "dead", 30, 1, 20)
	begun := time.Now()
	fillQueue(t, brief, "mixed", 20, 1, 20)
	waits := s.Ticket(driver.Request{Name: "mixed", ID: "alive", Units: 1, Capacity: 20, Since: time.Now()})
	switch v, err := waits.Enqueue(t.Context()); {
	case err != nil:
		t.Fatal(err)
	case v.Held && time.Since(begun) >= ttl:
		t.Skip("inconclusive: this machine took longer to enqueue twenty entries than their TTL")
	case v.Held:
		t.Fatalf("%+v", v)
	}
	time.Sleep(ttl + 100*time.Millisecond)
	if err := wrong("dead"); err != nil {
		t.Errorf("all have expired: %v", err)
	}
	if err := wrong("mixed"); !errors.Is(err, driver.ErrMismatch) {
		t.Errorf("one is live: %v", err)
	}
	if v, err := waits.Enqueue(t.Context()); err != nil || !v.Held {
		t.Errorf("a live waiter behind expired ones: %+v, %v", v, err)
	}
}

// Many entries of one name are renewed in slices, so that no script blocks the other clients for
// long. (20,000 permits of one client were one script of half a second.)
func TestRenewalIsSliced(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	s := session(t, testkit.Open(t, server.URL()), time.Hour)
	const n = 1100
	fillQueue(t, s, "a", n, 1, n/2)
	_, err := s.KeepAlive(t.Context())
	must(t, err)
	before := server.Calls(t, "evalsha")
	_, err = s.KeepAlive(t.Context())
	must(t, err)
	if got := server.Calls(t, "evalsha") - before; got < n/350 || got > 2*n/350 {
		t.Errorf("%d scripts for %d entries", got, n)
	}
}

// L4: expired holders block no one, however many they are. Of very many holders each request
// examines some; a waiter asks again, and a try goes on until all are examined. (A try found a
// semaphore busy whose thousand permits had expired.)
func TestTryPassesManyExpired(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	s := session(t, testkit.Open(t, server.URL()), time.Hour)
	try := func(name string, units, capacity int64) driver.Verdict {
		r := testkit.Request(name)
		r.Units, r.Capacity, r.NoWait = units, capacity, true
		v, err := s.Ticket(r).Enqueue(t.Context())
		must(t, err)
		return v
	}
	const ttl = 2 * time.Second
	brief := session(t, testkit.Open(t, server.URL()), ttl)
	const n = 1200 // more than two calls examine
	fillQueue(t, brief, "permits", n, 1, n)
	fillQueue(t, brief, "readers", n, 1, driver.Whole)
	fillQueue(t, brief, "mixed", n, 1, n+1)
	if v := try("mixed", 1, n+1); !v.Held {
		t.Fatalf("the last permit: %+v", v)
	}
	time.Sleep(ttl + 100*time.Millisecond)
	if v := try("permits", 1, n); !v.Held {
		t.Errorf("one permit of %d, all of which have expired: %+v", n, v)
	}
	if v := try("readers", driver.Whole, driver.Whole); !v.Held {
		t.Errorf("a writer, and all readers have expired: %+v", v)
	}
	// One of them is live. The try examines all of the others, and then the semaphore is busy.
	if v := try("mixed", n+1, n+1); v.Held {
		t.Errorf("all permits, one of which is held: %+v", v)
	}
}
