package held_test

import (
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/adapters/internal/held"
	_ "github.com/hasplock/hasp/filelock"
)

// After a loss, the first Unlock gets the lost lease and not the one of its successor.
func TestLostOneComesFirst(t *testing.T) {
	c, err := hasp.Open(t.Context(), "file://"+t.TempDir()+"/locks")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var all held.Leases
	if all.Take("a") != nil {
		t.Error("a lease of nothing")
	}
	lock := func(name string) *hasp.Lease {
		lease, err := c.Mutex(name).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all.Put("a", lease)
		return lease
	}
	first := lock("a")
	if err := c.Evict(t.Context(), "a", first.ID(), "test"); err != nil {
		t.Fatal(err)
	}
	<-first.Context().Done()
	second := lock("a")
	for i, want := range []*hasp.Lease{first, second, nil} {
		if got := all.Take("a"); got != want {
			t.Errorf("%d: the wrong lease", i)
		}
	}
	if !second.Held() {
		t.Error("the successor has lost its lock")
	}
}
