// Package keepalive computes how much is left of the time that a store has granted, and the result
// of a KeepAlive whose entries are renewed one by one, if it did not reach all of them.
package keepalive

import (
	"context"
	"errors"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Left is how much of its TTL an entry has left at the moment at, if the last request that gave
// it the TTL was sent at the moment sent.
//
// The monotonic clock stands still while the machine sleeps, and the wall clock can be set, so
// the greater age counts. A wall clock that jumps ahead makes an entry look older than it is; at
// worst that entry's trust ends too early. The core subtracts the possible difference in rate of
// two machines' clocks, for the whole TTL, as it does for entries that are not late.
func Left(ttl time.Duration, sent, at time.Time) time.Duration {
	return ttl - max(at.Sub(sent), at.Round(0).Sub(sent.Round(0)), 0)
}

// Tally is the outcome of a KeepAlive.
type Tally struct {
	TTL  time.Duration
	All  int                      // entries that it began with and that still exist
	Late map[string]time.Duration // the time left of those that were not renewed, by ID
	Err  error                    // why; nil if no server answered in the time there was

	// ServerFailed says that one server of several has refused or has not answered at all, so that
	// the late entries may be late the next time, too. Otherwise there was too little time for
	// all.
	ServerFailed bool
}

// Answer makes the result of KeepAlive.
//
// If not all were renewed, the answer names the late entries, which keep their own time: the trust
// in thousands of locks that were just renewed must not end with one that was not.
func (t *Tally) Answer(ctx context.Context) (time.Duration, error) {
	if len(t.Late) == 0 {
		return t.TTL, nil
	}
	err := t.Err
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = errUnanswered
	}
	if len(t.Late) >= t.All {
		return 0, err
	}
	return 0, &driver.PartialRenewal{Granted: t.TTL, Late: t.Late, Err: err, Slow: !t.ServerFailed}
}

var errUnanswered = errors.New("not all entries were renewed")

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
