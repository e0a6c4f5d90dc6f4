package drivertest

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/memlock"
)

// Two runs of the suite beside each other: a solo test of one must meet no test of the
// other, which the testing package alone would not give.
func TestSoloAmongRuns(t *testing.T) {
	var running atomic.Int32
	theme := theme{"Theme", []test{
		{name: "Alone", solo: true, run: func(e *env) {
			if quiet.TryRLock() {
				quiet.RUnlock()
				e.Error("another test could begin")
			}
			if n := running.Add(1); n != 1 {
				e.Errorf("%d tests run", n)
			}
			time.Sleep(5 * time.Millisecond) // for another to come in, if it could
			if n := running.Add(-1); n != 0 {
				e.Errorf("%d others run now", n)
			}
		}},
		{name: "Among", run: func(e *env) {
			if quiet.TryLock() {
				quiet.Unlock()
				e.Error("a solo test could begin")
			}
			running.Add(1)
			time.Sleep(5 * time.Millisecond)
			running.Add(-1)
		}},
	}}
	h := Harness{Open: func(testing.TB) driver.Backend { return memlock.New().Backend() }, TTL: time.Second}
	t.Run("Runs", func(t *testing.T) {
		for _, name := range []string{"One", "Two"} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				t.Run(theme.name, func(t *testing.T) { theme.run(t, h) })
			})
		}
	})
	if !quiet.TryLock() {
		t.Fatal("a test that is over keeps others out")
	}
	quiet.Unlock()
}
