package zklock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp/driver/kit/bootclock"
	"github.com/hasplock/hasp/driver/kit/keepalive"
)

// KeepAlive renews by a request that a majority answers, if there is an entry to lose.
//
// Without one it only asks the server it is connected to, which costs the ensemble
// nothing. That is honest: an entry holds only after its own create was answered by a
// majority, which comes later than this, and so proves the same as a renewal would.
func (s *session) KeepAlive(ctx context.Context) (time.Duration, error) {
	began := bootclock.Now()
	var now renewal
	var connected bootclock.Instant
	err := s.do(ctx, func() error {
		// Before the entries are looked at: what is entered later is sent later.
		now.sent, connected = bootclock.Now(), s.connectedAt()
		if s.entries.Load() == 0 {
			_, _, err := s.zk.Exists("/")
			return err
		}
		return s.askMajority()
	})
	if errors.Is(err, context.DeadlineExceeded) {
		s.breakConnection() // perhaps another server answers
	}
	if errors.Is(err, zk.ErrNoAuth) {
		err = nil // of the plain request: the server has answered
	}
	if err != nil {
		return 0, explain("renew", err)
	}
	now.answered = bootclock.Now()
	s.renewals.answered(now, connected)
	granted := s.renewals.worth(began)
	if granted <= 0 {
		return 0, errors.New("renew: the one before is too long ago; renewing again")
	}
	return granted, nil
}

// renewalTimes computes how long the leader will keep the session, which is not simply the
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
// and if the follower dies or is cut off before the next of those, the report of our last
// request is lost with it. But when the leader has handled our request, everything that the
// follower had reported before has arrived, since they share one ordered connection. So a
// renewal proves that the leader knows of the one before it, provided that a report
// lies between the two:
//
//	the leader keeps the session until at least (send of the renewal before) + timeout.
//
// That is the worth of a renewal. With renewals every third of what is left it comes to
// three quarters of the timeout after each renewal. A renewal right after another proves
// nothing new about it: spacing demands a fifth of the timeout between them, which covers
// servers whose timeout is at least two and a half ticks (they grant no less than two).
//
// The creates and deletes of entries go the same way through the leader. To count them would spare
// the busiest of sessions a request every few seconds.
//
// Opening a session and taking it to a new connection are handled by the leader itself, so
// that a renewal on a new connection proves that one was handled. After an interruption the
// full timeout is soon there again.
//
// A connection may be granted less than the one before (shorten). Each sign of life counts for
// what its own connection was granted, and replaces what an earlier one was good for, so that
// from the moment at which the servers continue the session the smaller timeout is all there is.
type renewalTimes struct {
	mu       sync.Mutex
	timeout  time.Duration
	proven   bootclock.Instant // the leader has a sign of life of us that is later than this
	unproven []renewal         // answered, and not yet proven to have been reported; by sent, and few
	promised time.Time         // until then the core may rely on what it was told
}

// renewal is a request, and when its answer was here: somewhere between, the server noted
// it.
type renewal struct{ sent, answered bootclock.Instant }

func (t *renewalTimes) spacing() time.Duration { return t.timeout / 5 } // under mu

func newRenewalTimes(timeout time.Duration, opened renewal) *renewalTimes {
	return &renewalTimes{timeout: timeout, proven: opened.sent, unproven: []renewal{opened}, promised: opened.sent.At.Add(timeout)}
}

// answered notes a renewal. connected is when the request to continue the session was sent on
// a connection that stood before the renewal; it may have been replaced since, by one of
// which the same is true. Renewals that were under way together may be noted in any order.
//
// Spacing and order are of the monotonic clock. It stands still while this machine sleeps and the
// servers' do not: two requests then lie further apart than it says, which proves the more.
func (t *renewalTimes) answered(now renewal, connected bootclock.Instant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.proven.Before(connected) {
		t.proven = connected
	}
	for len(t.unproven) > 0 && now.sent.At.Sub(t.unproven[0].answered.At) >= t.spacing() {
		if sent := t.unproven[0].sent; t.proven.Before(sent) {
			t.proven = sent
		}
		t.unproven = slices.Delete(t.unproven, 0, 1)
	}
	t.unproven = append(t.unproven, now)
}

// worth returns how long, counted from the beginning of the call that asks, the session will
// be kept, and notes that the core will rely on it. It counts a sleep of this machine since the
// proof, which would be left out of the core's count, and which the servers have counted.
func (t *renewalTimes) worth(began bootclock.Instant) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	granted := keepalive.Left(t.timeout, t.proven, began)
	if until := began.At.Add(granted); until.After(t.promised) {
		t.promised = until
	}
	return granted
}

// shorten notes that a connection that asked for the session at this time was granted less
// than the ones before. It reports whether that breaks what the core was promised: it may go
// on to believe for longer than the servers now keep a session that they hear no more of.
func (t *renewalTimes) shorten(asked time.Time, timeout time.Duration) (broken bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timeout = min(t.timeout, timeout)
	return t.promised.After(asked.Add(timeout))
}
