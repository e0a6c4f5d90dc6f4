package hasp_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/memlock"
)

// Two stores with one label are two locks; two connections to one store are one.
func TestLockAllTellsStoresApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := memlock.New(), memlock.New()
		a, b := client(t, one.Backend()), client(t, two.Backend())
		m, err := hasp.LockAll(t.Context(), a.Mutex("x"), b.Mutex("x"))
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range []*hasp.Client{a, b} {
			if entries(t, c, "x") != 1 {
				t.Errorf("S1: store %d has no lock", i)
			}
		}
		if err := m.Release(t.Context()); err != nil {
			t.Fatal(err)
		}

		same := client(t, identified{one.Backend(), "one", nil})
		again := client(t, identified{one.Backend(), "one", nil})
		if m, err = hasp.LockAll(t.Context(), same.Mutex("x"), again.Mutex("x")); err != nil {
			t.Fatal(err)
		}
		if len(m.Leases()) != 1 {
			t.Errorf("one lock was taken %d times", len(m.Leases()))
		}
		away := client(t, identified{two.Backend(), "", errNetwork})
		_, err = hasp.LockAll(t.Context(), a.Mutex("y"), away.Mutex("y"))
		wantErr(t, err, errNetwork)
		if entries(t, a, "y") != 0 {
			t.Error("a lock was taken before it was known which stores these are")
		}
	})
}

// The order of the locks is that of the stores' identities, and not of their labels: two
// processes that spell a store differently must not wait for each other.
func TestLockAllOrdersByIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := memlock.New(), memlock.New()
		a := client(t, relabelled{identified{first.Backend(), "1", nil}, "z"})
		b := client(t, relabelled{identified{second.Backend(), "2", nil}, "a"})
		m, err := hasp.LockAll(t.Context(), b.Mutex("only-second"), a.Mutex("z-first"))
		if err != nil {
			t.Fatal(err)
		}
		if got := names(m); got[0] != "z-first" {
			t.Errorf("taken in the order %v", got)
		}
	})
}

type identified struct {
	driver.Backend
	id  string
	err error
}

func (b identified) Identity(context.Context) (string, error) { return b.id, b.err }

type relabelled struct {
	identified
	label string
}

func (b relabelled) String() string { return b.label }

// The work of one lock among many does not grow with how many they are.
func TestLockAllIsLinear(t *testing.T) {
	c := client(t, memlock.New().Backend())
	perLock := func(n int) float64 {
		locks := make([]hasp.Locker, n)
		for i := range locks {
			locks[i] = c.Mutex(string(rune('a'+i%26)) + time.Duration(i).String())
		}
		return testing.AllocsPerRun(3, func() {
			m, err := hasp.LockAll(t.Context(), locks...)
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}) / float64(n)
	}
	if few, many := perLock(10), perLock(1000); many > 2*few {
		t.Errorf("%.0f allocations for each of 10 locks, %.0f for each of 1,000", few, many)
	}
}
