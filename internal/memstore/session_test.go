package memstore

import (
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
)

// A session keeps nothing of an entry that has left it, in whichever way: a client may have one for
// years.
func TestEntriesThatLeftAreForgotten(t *testing.T) {
	t.Parallel()
	store := New("mem")
	b := store.Backend().(*backend)
	open := func() *session {
		s, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: time.Hour, Gone: func(string, error) {}})
		if err != nil {
			t.Fatal(err)
		}
		return s.(*session)
	}
	from, to := open(), open()
	r := driver.Request{Name: "a", ID: "first", Units: driver.Whole, Capacity: driver.Whole}
	enter := func(s *session) (*ticket, uint64) {
		k := s.Ticket(r).(*ticket)
		v, err := k.Enqueue(t.Context())
		if err != nil || !v.Held {
			t.Fatalf("%+v, %v", v, err)
		}
		return k, v.Token
	}
	kept := func(how string, want int) {
		t.Helper()
		if n, m := len(from.entries), len(to.entries); n != 0 || m != want {
			t.Errorf("%s: %d and %d entries, want 0 and %d", how, n, m, want)
		}
	}
	k, _ := enter(from)
	if err := k.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	kept("left", 0)
	enter(from)
	if err := b.Evict(t.Context(), "a", "first", ""); err != nil {
		t.Fatal(err)
	}
	kept("evicted", 0)
	_, seq := enter(from)
	r.ID = "second"
	if _, err := to.Ticket(r).(driver.Adopter).Adopt(t.Context(), "first", seq); err != nil {
		t.Fatal(err)
	}
	kept("adopted", 1)
	if store.Lose("a") != 1 {
		t.Fatal("nothing to lose")
	}
	kept("lost", 0)
	enter(from)
	store.Forget()
	kept("forgotten", 0)
}
