package zklock

import (
	"sync"
	"time"
)

// touches computes how long the leader will keep the session, which is not simply the
// session timeout from the last answered request. Two things make the simple answer wrong
// in an ensemble:
//
// A follower answers pings and reads alone. One that is cut off from the leader together
// with its clients goes on doing so for syncLimit ticks (10 s by default) while the leader
// lets their sessions expire. So a renewal has to be a request that a majority answers:
// a multi that only checks that "/" exists. It is logged and changes nothing. A leader
// that is cut off itself cannot answer it, and a new leader starts all timeouts afresh.
//
// Even then the leader does not take the request itself for a sign of life. It hears of
// the sessions from each follower in the answers to its own pings to it, every half tick;
// and if the follower dies or is cut off before the next of those, the news of our last
// request dies with it. But when the leader has handled our request, everything that the
// follower had reported before has arrived, since they share one ordered connection. So a
// renewal proves that the leader knows of the one before it, provided that a report
// lies between the two:
//
//	the leader keeps the session until at least (send of the renewal before) + timeout.
//
// That is what a renewal is worth. With renewals every third of what is left it comes to
// three quarters of the timeout after each renewal. A renewal right after another proves
// nothing new about it: spacing demands a fifth of the timeout between them, which covers
// servers whose timeout is at least two and a half ticks (they grant no less than two).
//
// Opening a session and taking it to a new connection are handled by the leader itself, so
// that a renewal on a new connection proves that one was heard. After an interruption the
// full timeout is soon there again.
//
// A connection may be granted less than the one before (shorten). Each sign of life counts for
// what its own connection was granted, and replaces what an earlier one was good for, so that
// from the moment at which the servers continue the session the smaller timeout is all there is.
type touches struct {
	mu       sync.Mutex
	timeout  time.Duration
	proven   time.Time // the leader has heard from us after this
	newest   touch     // answered, and not yet proven to have been reported
	promised time.Time // until then the core may rely on what it was told
}

// touch is a request, and when its answer was here: somewhere between, the server noted
// it.
type touch struct{ sent, answered time.Time }

func (t *touches) spacing() time.Duration { return t.timeout / 5 } // under mu

func newTouches(timeout time.Duration, opened touch) *touches {
	return &touches{timeout: timeout, proven: opened.sent, newest: opened, promised: opened.sent.Add(timeout)}
}

// renewed notes an answered renewal and returns how long, counted from the beginning of the
// call that made it, the session will be kept. connected is when the request to continue the session was sent on
// a connection that stood before the renewal; it may have been replaced since, by one of
// which the same is true. Every duration is taken from the monotonic clock, like the
// server's own.
func (t *touches) renewed(began time.Time, now touch, connected time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.sent.Sub(t.newest.answered) >= t.spacing() {
		t.proven = t.newest.sent
		t.newest = now
	}
	if connected.After(t.proven) {
		t.proven = connected
	}
	granted := min(t.timeout-began.Sub(t.proven), t.timeout)
	if until := began.Add(granted); until.After(t.promised) {
		t.promised = until
	}
	return granted
}

// shorten notes that a connection that asked for the session at this time was granted less
// than the ones before. It reports whether that breaks what the core was promised: it may go
// on to believe for longer than the servers now keep a session that they hear no more of.
func (t *touches) shorten(asked time.Time, timeout time.Duration) (broken bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timeout = min(t.timeout, timeout)
	return t.promised.After(asked.Add(timeout))
}
