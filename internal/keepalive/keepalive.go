// Package keepalive is the arithmetic of a KeepAlive whose entries are renewed one by one: what
// is left of those that it did not reach, and what it answers.
package keepalive

import (
	"context"
	"errors"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Left is what an entry has left at a moment, if the last request that gave it its TTL was sent
// at another.
//
// The monotonic clock stands still while the machine sleeps and the wall clock can be set, so
// that the greater age counts: a wall clock that jumps ahead makes an entry look older than it
// is, and costs it at worst. What clocks of two machines may differ in rate is for the core to
// subtract, for the whole TTL, as it does for those that are not late.
func Left(ttl time.Duration, sent, at time.Time) time.Duration {
	return ttl - max(at.Sub(sent), at.Round(0).Sub(sent.Round(0)), 0)
}

// Tally is what has become of a KeepAlive.
type Tally struct {
	TTL  time.Duration
	All  int                      // entries that it began with, and that are still there
	Late map[string]time.Duration // what is left of those that were not renewed, by ID
	Err  error                    // why; nil if no server answered in the time there was

	// Apart says that those that are late need not be in time the next time: a server of several
	// has not answered at all, or has refused. Otherwise there was too little time for all.
	Apart bool
}

// Answer makes the result of KeepAlive.
//
// Where time was too short, the least that any entry has left speaks for all of them: the core
// then comes again soon, and goes on with the oldest. But not if that is little: the trust in
// thousands of locks that were renewed a moment ago must not end with the one that was not. So
// the core is then told which they are.
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
	least := t.TTL
	for _, left := range t.Late {
		least = min(least, left)
	}
	if !t.Apart && least > t.TTL/2 {
		return least, nil
	}
	return 0, &driver.PartialRenewal{Granted: t.TTL, Late: t.Late, Err: err}
}

var errUnanswered = errors.New("not all entries were renewed")
