package keepalive

import "time"

// Slices calls do for the numbers from 0 to n-1, in their order, up to atOnce of them at the same
// time, and returns when all calls have. It begins no more once do has said that it should not
// go on.
//
// How many are under way depends on what they take. Where a round trip is long, it takes many to
// use the time; where the server or the network has more than it can do, they only wait for each
// other, and what is under way when the caller's time is over is done for nothing. So there is
// one more after each that was about as fast as the fastest, and else one less.
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
		if r.took <= fastest*3/2+pauses {
			width = min(width+1, atOnce)
		} else {
			width = max(width-1, 1)
		}
	}
}

// pauses are how much longer a call may take than another for no reason of the network's.
const pauses = 2 * time.Millisecond
