package keepalive

import "time"

// Slices calls do for the numbers from 0 to n-1, in their order, up to atOnce of them at the same
// time, and returns when all calls have returned. After a call that returns false it begins no
// more.
//
// The number of concurrent calls depends on their duration. If a round trip is long, many calls
// use the time; if the server or the network is overloaded, they only wait for each other, and
// the calls that are under way when the caller's time is over are wasted. So after a call about
// as fast as the fastest there is one more, and after a slower one there is one less.
func Slices(n, atOnce int, do func(i int) (goOn bool)) {
	type result struct {
		took time.Duration
		goOn bool
	}
	results := make(chan result)
	width, running := 1, 0
	fastest := time.Duration(-1)
	begin := func(i int) {
		began := time.Now()
		goOn := do(i)
		results <- result{time.Since(began), goOn}
	}
	next := 0
	for next < n || running > 0 {
		for ; next < n && running < width; next++ {
			running++
			go begin(next)
		}
		r := <-results
		running--
		if !r.goOn {
			n = next
		}
		if fastest < 0 || r.took < fastest {
			fastest = r.took
		}
		if r.took <= fastest*3/2+tolerance {
			width = min(width+1, atOnce)
		} else {
			width = max(width-1, 1)
		}
	}
}

// tolerance is how much longer one call may take than another by chance.
const tolerance = 2 * time.Millisecond
