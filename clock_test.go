package hasp

import (
	"testing"
	"time"
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
		elapsed, suspended := compareClocks(c.mono, c.wall, func() time.Duration { return c.boot })
		if elapsed != c.elapsed || suspended != c.suspended {
			t.Errorf("%s: %s, %s; want %s, %s", c.name, elapsed, suspended, c.elapsed, c.suspended)
		}
	}
}

func TestBootClockRuns(t *testing.T) {
	if bootTime() == 0 {
		t.Skip("this system has no boot clock")
	}
	began := now()
	time.Sleep(time.Millisecond)
	if got := bootTime() - began.boot; got < time.Millisecond || got > time.Minute {
		t.Errorf("the boot clock moved %s in a millisecond", got)
	}
}
