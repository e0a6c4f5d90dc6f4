package main

import (
	"slices"
	"syscall"
	"time"
)

// figures are what one contestant has shown in one repetition of a scenario. A field that
// the scenario does not measure is 0.
type figures struct {
	Acquisitions int     `json:"acquisitions"`
	Rate         float64 `json:"rate_per_s,omitempty"`
	P50          float64 `json:"p50_us,omitempty"`
	P95          float64 `json:"p95_us,omitempty"`
	P99          float64 `json:"p99_us,omitempty"`
	Commands     float64 `json:"commands_per_acquisition,omitempty"`
	CPU          float64 `json:"client_cpu_us_per_acquisition,omitempty"`

	// Of contention.
	Jain       float64 `json:"jain,omitempty"` // fairness: 1 is perfect
	Least      int     `json:"least"`          // acquisitions of the contender that had the fewest
	Most       int     `json:"most"`
	Inversions int     `json:"inversions"` // grants past somebody who had asked well before

	// Of holding.
	Heap       float64 `json:"heap_bytes_per_lock,omitempty"`
	Goroutines float64 `json:"goroutines_per_lock,omitempty"`
	PerSecond  float64 `json:"commands_per_s,omitempty"`
	CPU30      float64 `json:"client_cpu_s_per_30s,omitempty"`
	Lost       int     `json:"lost,omitempty"`

	// Of growth.
	Steps  []step  `json:"steps,omitempty"`
	Growth float64 `json:"growth,omitempty"` // p50 of the last step over that of the first

	Error string `json:"error,omitempty"` // why there are no figures
}

// step is a p50, in microseconds, where there are so many of what grows.
type step struct {
	N   int     `json:"n"`
	P50 float64 `json:"p50_us"`
}

// timings sets the percentiles.
func (f *figures) timings(all []time.Duration) {
	if len(all) == 0 {
		return
	}
	slices.Sort(all)
	at := func(p int) float64 { return float64(all[len(all)*p/100]) / 1e3 }
	f.P50, f.P95, f.P99 = at(50), at(95), at(99)
}

// shares sets how the acquisitions were shared out.
func (f *figures) shares(each []int) {
	var sum, squares float64
	for _, n := range each {
		sum += float64(n)
		squares += float64(n) * float64(n)
	}
	if squares > 0 { // R. Jain, D. Chiu, W. Hawe 1984: A Quantitative Measure of Fairness
		f.Jain = sum * sum / (float64(len(each)) * squares)
	}
	f.Least, f.Most = slices.Min(each), slices.Max(each)
}

// processorTime is the processor time of this process so far.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// median of figures of several repetitions.
func median(all []float64) float64 {
	if len(all) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(all))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// span is a ratio over several repetitions.
type span struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// spanOf leaves out the quarter that is furthest from the median: a machine has its moments.
func spanOf(all []float64) span {
	if len(all) == 0 {
		return span{}
	}
	s, mid := slices.Sorted(slices.Values(all)), median(all)
	for range len(s) / 4 {
		if mid-s[0] > s[len(s)-1]-mid {
			s = s[1:]
		} else {
			s = s[:len(s)-1]
		}
	}
	return span{mid, s[0], s[len(s)-1]}
}

// disagreement is how far a ratio may be from its median before it means nothing.
const disagreement = 0.4

// agrees reports whether the repetitions tell the same.
func (s span) agrees() bool {
	return s.Median > 0 && s.Min >= s.Median*(1-disagreement) && s.Max <= s.Median*(1+disagreement)
}
