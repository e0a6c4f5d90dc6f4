package signal_test

import (
	"sync"
	"testing"

	"github.com/hasplock/hasp/driver/kit/signal"
)

// receive takes what there is, and counts it.
func receive(b *signal.Signal) (n int) {
	for {
		select {
		case <-b.C():
			n++
		default:
			return n
		}
	}
}

func TestSignal(t *testing.T) {
	var b signal.Signal
	if n := receive(&b); n != 0 {
		t.Errorf("received %d times before a signal", n)
	}
	for _, b := range []*signal.Signal{&b, {}} { // the first has a channel
		for range 2 {
			b.Notify()
			b.Notify()
			if n := receive(b); n != 1 {
				t.Errorf("received %d times after two signals, want one for both", n)
			}
		}
	}
}

// A signal is never lost, in either order of Notify and C.
func TestSignalRace(t *testing.T) {
	for range 10_000 {
		var b signal.Signal
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(b.Notify)
		}
		<-b.C()
		wg.Wait()
		if n := receive(&b); n > 1 {
			t.Fatalf("two signals were received %d times", 1+n)
		}
	}
}

func TestHeldLocksHaveNoChannel(t *testing.T) {
	var all [100]signal.Signal
	if n := testing.AllocsPerRun(10, func() {
		for i := range all {
			all[i].Notify()
		}
	}); n != 0 {
		t.Errorf("signalling without a receiver allocates %v times", n)
	}
}
