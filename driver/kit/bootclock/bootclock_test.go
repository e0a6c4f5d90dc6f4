package bootclock

import (
	"testing"
	"time"
	"unsafe"
)

func TestSuspendCounts(t *testing.T) {
	const s, h = time.Second, time.Hour
	for _, c := range []struct {
		name               string
		mono, wall, boot   time.Duration
		elapsed, suspended time.Duration
	}{
		{"awake", s, s, s, s, 0},
		{"slept an hour", s, h + s, h + s, h + s, h},
		{"slept, and the wall clock was corrected by a second", s, h, h + s, h + s, h},
		{"wall clock set forward: not believed", s, h, s, s, 0},
		{"wall clock set back: not believed", s, -h, s, s, 0},
		{"fake time runs ahead of the real boot clock", h, h, time.Microsecond, h, 0},
		{"no boot clock", s, h, 0, s, 0},
	} {
		elapsed, suspended := compare(c.mono, c.wall, func() time.Duration { return c.boot })
		if elapsed != c.elapsed || suspended != c.suspended {
			t.Errorf("%s: %s, %s; want %s, %s", c.name, elapsed, suspended, c.elapsed, c.suspended)
		}
	}
}

func TestBootClockRuns(t *testing.T) {
	if Boot() == 0 {
		t.Skip("this system has no boot clock")
	}
	began := Now()
	time.Sleep(time.Millisecond)
	if got := Boot() - began.Boot; got < time.Millisecond || got > time.Minute {
		t.Errorf("the boot clock moved %s in a millisecond", got)
	}
}

// A step of the wall clock is no time that has passed, in either direction; a sleep is.
func TestSub(t *testing.T) {
	if Boot() == 0 {
		t.Skip("this system has no boot clock")
	}
	began := Now()
	for _, step := range []time.Duration{300 * time.Second, -300 * time.Second} {
		now := Now()
		stepped := now
		// time.Time keeps the wall clock's seconds here; package time makes no such time.
		*(*uint64)(unsafe.Pointer(&stepped.At)) += uint64(step/time.Second) << 30
		if stepped.At.Round(0).Sub(now.At.Round(0)) != step || stepped.At.Sub(now.At) != 0 {
			t.Fatal("time.Time is kept in another way than this test knows")
		}
		if d := stepped.Sub(began); d != now.Sub(began) || d > time.Minute {
			t.Errorf("%s after a step by %s, %s without", d, step, now.Sub(began))
		}
		asleep := now
		asleep.Boot += time.Hour
		if d := asleep.Sub(began); d < time.Hour {
			t.Errorf("%s after an hour's sleep", d)
		}
	}
	if d := (Instant{At: began.At.Add(time.Second)}).Sub(began); d != time.Second {
		t.Errorf("%s by an instant without a boot clock", d)
	}
}
