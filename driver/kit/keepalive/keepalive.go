// Package keepalive is for drivers whose renewal takes more than one request. It computes how much
// is left of the time that a store has granted (Left), makes the requests at the same time (Slices),
// and makes the result of KeepAlive if they did not reach all entries (Tally).
package keepalive

import (
	"context"
	"errors"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/bootclock"
)

// Left is how much of its TTL an entry has left at the moment at, if the last request that gave
// it the TTL was sent at the moment sent.
//
// The core subtracts the possible difference in rate of two machines' clocks, for the whole TTL, as
// it does for entries that are not late.
func Left(ttl time.Duration, sent, at bootclock.Instant) time.Duration {
	return ttl - max(at.Sub(sent), 0)
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
// as fast as the fastest there is one more, and after a slower one there is one less. Where none
// has been answered for a while there is one more, too: the first may be the one that never is.
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
		var r result
		select {
		case r = <-results:
		case <-time.After(patience):
			width = min(max(width, running+1), atOnce)
			continue
		}
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

// patience is for how long the next call waits for an answer to those that are under way.
const patience = 250 * time.Millisecond

// tolerance is how much longer one call may take than another by chance.
const tolerance = 2 * time.Millisecond
