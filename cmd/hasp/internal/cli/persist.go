package cli

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/exit"
)

// Between two attempts to reach a store. The longest is how late hasp may notice that the store is
// there; the jitter keeps a rack of machines that was switched on together from coming together.
const (
	againFirst = 200 * time.Millisecond
	againMost  = 5 * time.Second
)

// untilSignal has persist try until a signal comes.
const untilSignal time.Duration = -1

// persist repeats attempt for most, as long as it fails for a reason that may pass (see isTransient).
// Without --wait there is one attempt: a wrong address must not hang a job that is to wait for its
// lock for as long as it takes, and what calls hasp may look at 69.
//
// It tells the first error and each that differs at once: a wrong address shows when it can be
// corrected, not when the wait is over. An attempt is told how long it may wait. What it has left in
// the store, it removes itself before it returns; so two of them cannot stand in the queue beside
// each other.
func (a *app) persist(ctx context.Context, f *storeFlags, most time.Duration, tell func(error), attempt func(left time.Duration) error) error {
	always := most == untilSignal
	end := time.Now().Add(most)
	told := ""
	left := most
	var last error
	for delay := againFirst; ; delay = min(2*delay, againMost) {
		short := !always && left < againFirst
		err := attempt(left)
		if last != nil && short && err != nil && exit.Of(err).Outcome == exit.OutcomeUnreachable {
			return last // it had no time for another answer: report the last one that is known
		}
		if err == nil || !isTransient(f, err) {
			return err
		}
		last = err
		if left = time.Until(end); left <= 0 && !always {
			return err
		}
		if text := err.Error(); text != told {
			told = text
			tell(err)
		}
		pause := delay/2 + rand.N(delay/2)
		if !always {
			pause = min(pause, left)
		}
		if !sleep(ctx, pause) {
			return exit.Of(interruption(ctx, err))
		}
		left = max(0, time.Until(end))
	}
}

// isTransient reports whether an error of reaching a store may pass without anybody changing a
// setting: no connection, no answer, a name that does not resolve (a container's does when it has
// started), a server that starts, or that is read-only or full. A user, password or database that
// the server does not know is ErrInvalid, and final. A file store refuses for what is on this
// machine's disk, which no failover changes.
func isTransient(f *storeFlags, err error) bool {
	failed := exit.Of(err)
	return failed.Outcome == exit.OutcomeUnreachable || failed.Outcome == exit.OutcomeRefused && f.store.Scheme() != "file"
}

// openWaiting is openOnce, repeated until the wait is over.
func (a *app) openWaiting(ctx context.Context, f *storeFlags, most duration, opts ...hasp.Option) (c *hasp.Client, until time.Time, err error) {
	err = a.persist(ctx, f, most.d, a.tellTrying(f), func(left time.Duration) error {
		c, until, err = a.openOnce(ctx, f, duration{d: left, set: most.set}, opts...)
		return err
	})
	return c, until, err
}

// openAlways opens the store for a service: it goes on trying until a signal comes.
func (a *app) openAlways(ctx context.Context, f *storeFlags, tell func(error), opts ...hasp.Option) (c *hasp.Client, err error) {
	err = a.persist(ctx, f, untilSignal, tell, func(time.Duration) error {
		bounded, cancel := context.WithTimeout(ctx, answerBound)
		defer cancel()
		c, err = a.open(bounded, f, opts...)
		return err
	})
	return c, err
}

// tellTrying is for the verbs without a reporter.
func (a *app) tellTrying(f *storeFlags) func(error) {
	return func(err error) {
		if !f.json {
			a.tell(fmt.Sprintf("%v; trying again", err))
		}
	}
}

// trying reports a store that cannot be reached yet.
func (r *reporter) trying(err error) {
	r.write(record{Event: "unreachable", Message: err.Error()})
	r.say("%v; trying again", err)
}
