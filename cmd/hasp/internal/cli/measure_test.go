package cli

import (
	"testing"
	"time"
)

// The classes are 2 % wide, nothing is said to be slower than the slowest, and what takes no
// time or a year has a class, too.
func TestLatencies(t *testing.T) {
	s := &latencies{}
	start := time.Now()
	for i := range 1000 {
		s.add(start, start.Add(time.Duration(1000-i)*time.Millisecond))
	}
	for p, exact := range map[float64]time.Duration{.5: 500, .95: 950, .99: 990, 1: 1000, .001: 1} {
		exact *= time.Millisecond
		if got := s.quantile(p); got < exact || float64(got) > float64(exact)*classWidth {
			t.Errorf("p%g is %s, exactly %s", 100*p, got, exact)
		}
	}
	if r := s.result("x"); r.Count != 1000 || r.Seconds != 1 || r.Rate != 1000 || r.Slowest != 1000 {
		t.Errorf("%+v", r)
	}
	for _, d := range []time.Duration{0, 1 << 58} {
		one := &latencies{}
		one.add(start, start.Add(d))
		if got := one.quantile(.5); got != one.slowest {
			t.Errorf("the only one took %s, and the middle one %s", d, got)
		}
	}
}
