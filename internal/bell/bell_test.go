package bell_test

import (
	"sync"
	"testing"

	"github.com/hasplock/hasp/internal/bell"
)

// heard takes what there is.
func heard(b *bell.Bell) (n int) {
	for {
		select {
		case <-b.Rings():
			n++
		default:
			return n
		}
	}
}

func TestBell(t *testing.T) {
	var b bell.Bell
	if n := heard(&b); n != 0 {
		t.Errorf("heard %d times before it was rung", n)
	}
	for _, b := range []*bell.Bell{&b, {}} { // somebody has listened to the first
		for range 2 {
			b.Ring()
			b.Ring()
			if n := heard(b); n != 1 {
				t.Errorf("heard %d times after two rings, want one that says both", n)
			}
		}
	}
}

// A ring is never lost, whoever is first: the one who rings or the one who listens.
func TestBellRace(t *testing.T) {
	for range 10_000 {
		var b bell.Bell
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(b.Ring)
		}
		<-b.Rings()
		wg.Wait()
		if n := heard(&b); n > 1 {
			t.Fatalf("two rings were heard %d times", 1+n)
		}
	}
}

func TestHeldLocksHaveNoChannel(t *testing.T) {
	var all [100]bell.Bell
	if n := testing.AllocsPerRun(10, func() {
		for i := range all {
			all[i].Ring()
		}
	}); n != 0 {
		t.Errorf("ringing where nobody listens allocates %v times", n)
	}
}
