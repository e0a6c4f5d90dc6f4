package driver_test

import (
	"errors"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/rulecases"
)

func queue(capacity int64, units []int64) []driver.Entry {
	entries := make([]driver.Entry, len(units))
	for i, u := range units {
		entries[i] = driver.Entry{Request: driver.Request{Units: u, Capacity: capacity}, Seq: uint64(i + 1)}
	}
	return entries
}

func TestDecide(t *testing.T) {
	for _, c := range rulecases.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			entries := queue(c.Capacity, c.Units)
			for i, want := range c.Blockers {
				held, blockers := driver.Decide(entries[:i], entries[i].Request)
				if held != (want == 0) || len(blockers) != want {
					t.Errorf("entry %d: held %t, %d blockers; want %t, %d", i, held, len(blockers), want == 0, want)
				}
				if want > 0 && blockers[want-1].Seq != entries[i-1].Seq {
					t.Errorf("entry %d: its blockers are not those directly ahead", i)
				}
			}
		})
	}
}

// Entries that no client of ours wrote can delay, and nothing else.
func TestDecideMalformed(t *testing.T) {
	for _, c := range []struct {
		name     string
		capacity int64
		units    []int64
		held     bool
	}{
		{"no units count as one", 2, []int64{0, 0, 1}, false},
		{"negative units count as one", 2, []int64{-1 << 63, 1}, true},
		{"too many units fill the capacity", 2, []int64{1 << 62, 1}, false},
		{"the sum does not overflow", driver.Whole, []int64{1<<63 - 1, 1<<63 - 1, 1<<63 - 1, 1}, false},
	} {
		entries := queue(c.capacity, c.units)
		last := len(entries) - 1
		if held, _ := driver.Decide(entries[:last], entries[last].Request); held != c.held {
			t.Errorf("%s: held %t, want %t", c.name, held, c.held)
		}
	}
}

// brute is the rule as it is written: the units ahead and its own fit into the capacity.
// Blockers are found by trying every run from the back.
func brute(ahead []int64, units, capacity int64) (held bool, blockers int) {
	sum := func(run []int64) int64 {
		s := units
		for _, u := range run {
			s += min(max(u, 1), capacity)
		}
		return s
	}
	if sum(ahead) <= capacity {
		return true, 0
	}
	for n := range ahead {
		if sum(ahead[len(ahead)-n:]) > capacity {
			return false, n
		}
	}
	return false, len(ahead)
}

func FuzzDecide(f *testing.F) {
	for _, c := range rulecases.Cases() {
		b := make([]byte, len(c.Units))
		for i, u := range c.Units {
			b[i] = byte(min(u, 255))
		}
		f.Add(b, uint8(min(c.Capacity, 255)))
	}
	f.Fuzz(func(t *testing.T, b []byte, n uint8) {
		if len(b) == 0 {
			return
		}
		capacity := int64(max(n, 1))
		units := make([]int64, len(b))
		for i, u := range b {
			units[i] = int64(int8(u)) // foreign entries may be malformed
		}
		last := len(units) - 1
		own := min(max(units[last], 1), capacity) // our own is not
		entries := queue(capacity, units)
		entries[last].Units = own
		held, blockers := driver.Decide(entries[:last], entries[last].Request)
		wantHeld, wantBlockers := brute(units[:last], own, capacity)
		if held != wantHeld || len(blockers) != wantBlockers {
			t.Fatalf("%v of %d: held %t, %d blockers; want %t, %d", units, capacity, held, len(blockers), wantHeld, wantBlockers)
		}
		if len(blockers) == 0 {
			return
		}
		// While the blockers stay, no other entry's leaving lets it in; and they are the
		// shortest such run, so that no waiter watches more than it must.
		if alone, _ := driver.Decide(blockers, entries[last].Request); alone {
			t.Fatalf("%v of %d: its blockers do not block it", units, capacity)
		}
		if enough, _ := driver.Decide(blockers[1:], entries[last].Request); !enough {
			t.Fatalf("%v of %d: %d blockers are more than it takes", units, capacity, len(blockers))
		}
	})
}

func TestCheckKind(t *testing.T) {
	me := driver.Request{Name: "n", Units: 1, Capacity: 3}
	if err := driver.CheckKind(queue(3, []int64{1, 2, 3}), me); err != nil {
		t.Errorf("equal capacities: %v", err)
	}
	if err := driver.CheckKind(nil, me); err != nil {
		t.Errorf("no entry ahead: %v", err)
	}
	err := driver.CheckKind(append(queue(3, []int64{1}), queue(driver.Whole, []int64{1})...), me)
	var m *driver.MismatchError
	if !errors.As(err, &m) || !errors.Is(err, driver.ErrMismatch) || m.Name != "n" || m.Want != 3 || m.Found != driver.Whole {
		t.Fatalf("other capacity: %#v", err)
	}
	if got, want := m.Error(), `"n" is in use as a mutex or read-write lock, not as a semaphore of 3`; got != want {
		t.Errorf("message %q, want %q", got, want)
	}
}

// The place of each entry that waits is one more than that of the one before it that does.
func TestPlace(t *testing.T) {
	for _, c := range rulecases.Cases() {
		entries := queue(c.Capacity, c.Units)
		waiting := 0
		for i := range entries {
			if held, _ := driver.Decide(entries[:i], entries[i].Request); held {
				continue
			}
			waiting++
			if got := driver.Place(entries[:i], c.Capacity); got != waiting {
				t.Errorf("%s: entry %d has place %d, want %d", c.Name, i, got, waiting)
			}
		}
	}
}
