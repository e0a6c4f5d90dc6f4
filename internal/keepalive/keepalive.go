// Package keepalive computes how much is left of the time that a store has granted, and the result of a KeepAlive whose
// entries are renewed one by one, if it did not reach all of them.
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
// If not all were renewed, the answer names the late entries, which keep their own time: the trust in thousands of
// locks that were just renewed must not end with one that was not.
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
