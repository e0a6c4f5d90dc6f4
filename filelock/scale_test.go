//go:build linux || darwin || freebsd

package filelock

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/testtier"
)

// enqueueMany makes a queue of n exclusive entries.
func enqueueMany(t *testing.T, s *session, name string, n int) []*ticket {
	t.Helper()
	all := make([]*ticket, n)
	for i := range all {
		all[i] = s.Ticket(mutexRequest(name, fmt.Sprint("id-", i))).(*ticket)
		if v, err := all[i].Enqueue(patient(t)); err != nil || v.Held != (i == 0) {
			t.Fatal(i, v, err)
		}
	}
	return all
}

// setProbe has f called before each access to a queue file.
func setProbe(f func(write bool)) { probe.Store(&f) }

// accesses counts what an operation reads and writes. What a session does by itself in the
// meantime (a signal from before has a grant looked at) counts as well.
func accesses(do func()) (reads, writes int64) {
	var r, w atomic.Int64
	setProbe(func(write bool) {
		if write {
			w.Add(1)
		} else {
			r.Add(1)
		}
	})
	defer probe.Store(nil)
	do()
	return r.Load(), w.Load()
}

// noReview keeps a session that holds nothing yet from looking at what it holds later.
func noReview(s *session) { s.upkeepRunning.Store(true) }

// What an operation reads grows by 64 bytes with each that waits, in two reads, and what it writes
// does not.
func TestThousandsOfWaiters(t *testing.T) {
	for _, n := range []int{20, 2_000} {
		s := openTestSession(t, storeDir(t))
		noReview(s)
		all := enqueueMany(t, s, "name", n)
		last := s.Ticket(mutexRequest("name", "last")).(*ticket)
		try := mutexRequest("name", "try")
		try.NoWait = true
		for _, op := range []struct {
			what          string
			reads, writes int64 // at most
			do            func() error
		}{
			{"enter", 2, 3, func() error { _, err := last.Enqueue(patient(t)); return err }},
			{"look", 2, 0, func() error { _, err := all[n/2].Enqueue(patient(t)); return err }},
			{"release", 2, 2, func() error { return all[0].Leave(patient(t)) }},
			{"granted", 2, 0, func() error { _, err := all[1].Wait(patient(t)); return err }},
			{"give up", 2, 2, func() error { return all[n/2].Leave(patient(t)) }},
			{"give up at the end", 2, 2, func() error { return last.Leave(patient(t)) }},
			// A try also reads who holds.
			{"try", 3, 0, func() error { _, err := s.Ticket(try).Enqueue(patient(t)); return err }},
		} {
			var err error
			reads, writes := accesses(func() { err = op.do() })
			if err != nil {
				t.Fatal(op.what, err)
			}
			t.Logf("%d waiting: %s takes %d reads, %d writes", n, op.what, reads, writes)
			if reads > op.reads || writes > op.writes {
				t.Errorf("%d waiting: %s takes %d reads and %d writes, more than %d and %d",
					n, op.what, reads, writes, op.reads, op.writes)
			}
		}
	}
}

// Who leads is read without reading what all the others have written, and beyond the dead.
func TestListLimit(t *testing.T) {
	dir := storeDir(t)
	s, b := openTestSession(t, dir), openBackend(t, dir)
	p := start(t, job{Do: "hold", Dir: dir, Name: "name"})
	p.must("holds")
	const n = 200
	for i := range n {
		r := mutexRequest("name", fmt.Sprint("id-", i))
		r.Value = make([]byte, maxValue)
		if _, err := s.Ticket(r).Enqueue(patient(t)); err != nil {
			t.Fatal(err)
		}
	}
	p.kill() // its entry is in front until another process removes it
	for limit, want := range map[int]int{0: n, 1: 1, 2: 2, n - 1: n - 1, n: n, n + 1: n, 10 * n: n} {
		var list []driver.Entry
		var err error
		reads, _ := accesses(func() { list, err = b.List(patient(t), "name", limit) })
		if err != nil || len(list) != want {
			t.Fatalf("limit %d: %d entries, %v", limit, len(list), err)
		}
		for i, e := range list {
			if e.ID != fmt.Sprint("id-", i) {
				t.Fatalf("limit %d: entry %d is %s", limit, i, e.ID)
			}
		}
		t.Logf("limit %d: %d reads", limit, reads)
		if limit == 1 && reads > 10 {
			t.Errorf("the first of %d takes %d reads", n, reads)
		}
	}
}

// A free lock costs one read and two writes to take, and one of each to give back.
func TestFreeLockAccesses(t *testing.T) {
	s := openTestSession(t, storeDir(t))
	noReview(s)
	e := s.Ticket(mutexRequest("name", "id"))
	if reads, writes := accesses(func() { e.Enqueue(patient(t)) }); reads != 1 || writes != 2 {
		t.Errorf("lock: %d reads, %d writes", reads, writes)
	}
	if reads, writes := accesses(func() { e.Leave(patient(t)) }); reads != 1 || writes != 1 {
		t.Errorf("release: %d reads, %d writes", reads, writes)
	}
}

// L5: a release signals the entries that it concerns and no others: those whose blockers, as
// driver.Decide has them, do not deny any more without the one that left. It tells those that hold
// so.
func TestAffectedBy(t *testing.T) {
	const W = driver.Whole
	rng := rand.New(rand.NewPCG(1, 2))
	queues := [][]int64{
		{W, W, W, W, W}, {W, W, 1, 1, 1, W, 1}, {W, 1, 1, 1, W, 1}, {W, 1, W, 1, 1, W}, // capacity first
		{3, 1, 1, 1, 1, 1, 1}, {3, 2, 2, 1, 1}, {10, 8, 4, 1, 3, 5},
	}
	for range 60 {
		q := []int64{1 + rng.Int64N(9)}
		for range 2 + rng.IntN(7) {
			q = append(q, 1+rng.Int64N(q[0]))
		}
		queues = append(queues, q)
	}
	s := openTestSession(t, storeDir(t))
	for n, q := range queues {
		for leaves := range len(q) - 1 {
			name := fmt.Sprint(n, "-", leaves)
			var all []*ticket
			var entries []driver.Entry
			for i, u := range q[1:] {
				r := mutexRequest(name, fmt.Sprint(i))
				r.Units, r.Capacity = u, q[0]
				all, entries = append(all, s.Ticket(r).(*ticket)), append(entries, driver.Entry{Request: r})
				if _, err := all[i].Enqueue(patient(t)); err != nil {
					t.Fatal(err)
				}
			}
			who, err := all[leaves].removeEntry(patient(t))
			if err != nil {
				t.Fatal(err)
			}
			signalled := []string{}
			for _, p := range who {
				i := slices.IndexFunc(all, func(e *ticket) bool { return e.number == p.ticket })
				signalled = append(signalled, all[i].request.ID)
				held, _ := driver.Decide(slices.Delete(slices.Clone(entries[:i]), leaves, leaves+1), entries[i].Request)
				if held != (p.holds != 0) || held && p.holds != all[i].seq {
					t.Errorf("%v of %d: %d leaves and %d is told of seq %d, holds %t", q[1:], q[0], leaves, i, p.holds, held)
				}
			}
			if want := concerned(entries, leaves); !slices.Equal(signalled, want) {
				t.Errorf("%v of %d: %d leaves and signals %v, want %v", q[1:], q[0], leaves, signalled, want)
			}
		}
	}
}

func concerned(entries []driver.Entry, leaves int) []string {
	ids := []string{}
	for i, e := range entries {
		_, blockers := driver.Decide(entries[:i], e.Request)
		free, was := e.Capacity-e.Units, false
		for _, b := range blockers {
			if b.ID == entries[leaves].ID {
				was = true
				continue
			}
			free -= b.Units
		}
		if was && free >= 0 {
			ids = append(ids, e.ID)
		}
	}
	return ids
}

// Entries with all that the limits allow.
func TestLargestEntry(t *testing.T) {
	dir := storeDir(t)
	s, b := openTestSession(t, dir), openBackend(t, dir)
	large := func(n int, c string) string { return string(slices.Repeat([]byte(c), n)) }
	for i := range firstSlots + 8 { // in page 0 and beyond
		r := mutexRequest(large(maxName, "n"), large(maxID-2, "i")+fmt.Sprintf("%02d", i))
		r.Owner, r.Value, r.Units = large(maxOwner, "o"), []byte(large(maxValue, "v")), 1 // readers: what waits publishes nothing
		e := s.Ticket(r)
		if _, err := e.Enqueue(patient(t)); err != nil {
			t.Fatal(err)
		}
		value := []byte(large(maxValue-i, "w"))
		if err := e.(driver.Publisher).Publish(patient(t), value); err != nil {
			t.Fatal(err)
		}
		list, err := b.List(patient(t), r.Name, 0)
		if err != nil || len(list) != i+1 {
			t.Fatal(len(list), err)
		}
		got := list[i]
		if got.ID != r.ID || got.Owner != r.Owner || string(got.Value) != string(value) || !got.Since.Equal(r.Since) {
			t.Errorf("entry %d came back as %+v", i, got)
		}
	}
	for _, spoil := range []func(*driver.Request){
		func(r *driver.Request) { r.Name += "n" },
		func(r *driver.Request) { r.ID = large(maxID+1, "i") },
		func(r *driver.Request) { r.Owner += "o" },
		func(r *driver.Request) { r.Value = append(r.Value, 'v') },
		func(r *driver.Request) { r.Units = 0 },
	} {
		r := mutexRequest(large(maxName, "n"), "id")
		r.Owner, r.Value = large(maxOwner, "o"), []byte(large(maxValue, "v"))
		spoil(&r)
		if _, err := s.Ticket(r).Enqueue(patient(t)); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("too much: %v", err)
		}
	}
}

// L6: descriptors do not grow with the names that were used, nor does the directory.
func TestManyNames(t *testing.T) { manyNames(t, 5_000) }

func TestHundredThousandNames(t *testing.T) {
	testtier.Long(t)
	manyNames(t, 100_000)
}

func manyNames(t *testing.T, names int) {
	dir := storeDir(t)
	s := openTestSession(t, dir)
	var files, fds int
	for i := range names {
		e := s.Ticket(mutexRequest(fmt.Sprint("name-", i), "id"))
		if v, err := e.Enqueue(t.Context()); err != nil || !v.Held {
			t.Fatal(v, err)
		}
		if err := e.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		if i == 2000 {
			files, fds = countFiles(t, dir+"/"+queuesDirName), countFiles(t, "/dev/fd")
		}
	}
	if n := countFiles(t, dir+"/"+queuesDirName); n != files || n != queueFiles {
		t.Errorf("%d queue files after %d names, %d before", n, names, files)
	}
	if n := countFiles(t, "/dev/fd"); n > fds {
		t.Errorf("%d descriptors after %d names, %d before", n, names, fds)
	}
}

func countFiles(t *testing.T, dir string) int {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
