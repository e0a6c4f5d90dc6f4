package pglock

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

type fakeTask struct {
	mu     sync.Mutex
	ended  bool
	called []time.Time
}

func (f *fakeTask) over() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ended
}

func (f *fakeTask) due() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.called = append(f.called, time.Now())
}

func (f *fakeTask) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
}

// times are those at which it was due.
func (f *fakeTask) times() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.called
}

func (d *delayed) kept() (n int, idle bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.queue), d.timer == nil
}

// A task is due once, after its time and at most one task's time later, unless it is over by then.
func TestDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const after = 20 * time.Millisecond
		d := delayed{after: after}
		for round := range 3 { // the queue has been empty in between
			began := time.Now()
			first, short, last := &fakeTask{}, &fakeTask{}, &fakeTask{}
			d.add(first)
			time.Sleep(5 * time.Millisecond)
			d.add(short)
			d.add(last)
			short.end()
			time.Sleep(time.Second)
			if len(first.times()) != 1 || first.times()[0].Sub(began) != after {
				t.Errorf("round %d: the first was due at %v, added at %v", round, first.times(), began)
			}
			if len(last.times()) != 1 || last.times()[0].Sub(began) != after+5*time.Millisecond {
				t.Errorf("round %d: the last was due at %v, added 5 ms after %v", round, last.times(), began)
			}
			if len(short.times()) != 0 {
				t.Errorf("round %d: one that was over was called", round)
			}
			if n, idle := d.kept(); n != 0 || !idle {
				t.Errorf("round %d: left are %d, without a timer %t", round, n, idle)
			}
		}
	})
}

// Many that come and go have the timer fire once in the time, and what has gone is not kept for
// longer.
func TestDelayedChurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := delayed{after: 20 * time.Millisecond}
		before, most, looks := 0, 0, 0
		for range 10_000 {
			f := &fakeTask{}
			d.add(f)
			n, _ := d.kept()
			if n <= before { // a look has removed some
				looks++
			}
			before, most = n, max(most, n)
			time.Sleep(100 * time.Microsecond)
			f.end()
			if len(f.times()) > 0 {
				t.Fatal("called before it was due")
			}
		}
		if most > 500 || looks == 0 || looks > 60 { // 200 come in 20 ms, and a second has 50 of those
			t.Errorf("%d were kept, and it looked %d times", most, looks)
		}
		time.Sleep(time.Second)
		if n, idle := d.kept(); n != 0 || !idle {
			t.Errorf("%d are kept for ever, without a timer %t", n, idle)
		}
	})
}
