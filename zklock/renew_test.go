package zklock

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp/driver/kit/bootclock"
)

// renewAt has a renewal sent now and answered after rtt.
func renewAt(t *renewalTimes, rtt time.Duration) time.Duration {
	sent := bootclock.Now()
	time.Sleep(rtt)
	t.answered(renewal{sent, bootclock.Now()}, bootclock.Instant{})
	return t.worth(sent)
}

func opened(timeout time.Duration) *renewalTimes {
	sent := bootclock.Now()
	time.Sleep(time.Millisecond)
	return newRenewalTimes(timeout, renewal{sent, bootclock.Now()})
}

// The core renews after a third of what it was granted; that settles at three quarters.
func TestRenewalTimesSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 10 * time.Second
		tr := opened(timeout)
		granted := timeout
		for range 20 {
			time.Sleep(granted/3 - time.Millisecond)
			granted = renewAt(tr, time.Millisecond)
		}
		if granted < 7400*time.Millisecond || granted > 7600*time.Millisecond {
			t.Errorf("settled at %s", granted)
		}
	})
}

// A burst of renewals, as after failures, promises no more than the first of it: the
// follower may not have reported any of them yet.
func TestRenewalTimesBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 10 * time.Second
		tr := opened(timeout)
		began := time.Now().Add(-time.Millisecond)
		for range 50 {
			sent := time.Now()
			granted := renewAt(tr, time.Millisecond)
			if until := sent.Add(granted); until.After(began.Add(timeout)) {
				t.Fatalf("after %s: kept until %s after the opening", sent.Sub(began), until.Sub(began))
			}
			time.Sleep(30 * time.Millisecond) // 1.6 s in all, less than a fifth of the timeout
		}
	})
}

// model is a follower and a leader. The leader hears of the follower's sessions every half
// tick, and at any moment the follower may die with what it has not reported.
type model struct {
	tick    time.Duration
	opened  time.Time     // the leader opened, or continued, the session after this
	reports time.Duration // their phase
	noted   []time.Time   // when the follower noted a renewal
}

// lastSeen is the last sign of life that the leader has of us when it handles a request that
// the follower handled at this moment.
func (m *model) lastSeen(at time.Time) time.Time {
	epoch := time.Unix(0, 0).Add(m.reports)
	report := epoch.Add(at.Sub(epoch) / (m.tick / 2) * (m.tick / 2))
	last := m.opened
	for _, n := range m.noted {
		if !n.After(report) && n.After(last) {
			last = n
		}
	}
	return last
}

// The promise holds for every moment at which the follower may die, with renewals that are
// late, slow, in bursts, and that begin by waiting for a new connection, which may be granted
// less than the one before: then it is told if it breaks a promise that was made before.
func TestRenewalTimesAgainstModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const tick = 2 * time.Second
		pause := func(most time.Duration) { time.Sleep(rand.N(most)) }
		for range 500 {
			timeout := 5*tick/2 + rand.N(20*time.Second)
			m := &model{tick: tick, opened: time.Now(), reports: rand.N(tick / 2)}
			tr := opened(timeout)
			granted := timeout
			var connected bootclock.Instant
			promised := m.opened.Add(timeout)
			seen := m.opened // by the leader, when it handled our last request
			request := func() {
				sent := bootclock.Now()
				pause(30 * time.Millisecond)
				at := time.Now()
				seen = m.lastSeen(at)
				m.noted = append(m.noted, at)
				pause(30 * time.Millisecond)
				tr.answered(renewal{sent, bootclock.Now()}, connected)
			}
			promise := func(at bootclock.Instant) {
				began := at.At
				if until := began.Add(granted); until.After(promised) {
					promised = until
				}
				if kept, promised := seen.Add(timeout), began.Add(granted); promised.After(kept) {
					t.Fatalf("timeout %s: promised %s longer than a leader that loses this follower now keeps the session", timeout, promised.Sub(kept))
				}
				if granted <= 0 || granted > timeout {
					t.Fatalf("timeout %s: granted %s", timeout, granted)
				}
			}
			for range 15 {
				pause(granted / 3)
				began := bootclock.Now()
				if rand.N(4) == 0 { // the connection had been lost, and with it what was not reported
					pause(granted / 2)
					connected = bootclock.Now()
					m.opened, m.noted = connected.At, nil
					if shorter := timeout - rand.N(timeout/4); rand.N(4) == 0 && shorter >= 5*tick/2 {
						timeout = shorter
						broken := promised.After(connected.At.Add(timeout))
						if got := tr.shorten(connected.At, timeout); got != broken {
							t.Fatalf("promised until %s, kept until %s after the connection: told %t", promised.Sub(connected.At), timeout, got)
						}
						if broken {
							break // the session is over
						}
					}
					pause(30 * time.Millisecond)
				}
				request()
				granted = tr.worth(began)
				promise(began)
			}
		}
	})
}

// The model finds what it is for: the usual way to count breaks it.
func TestModelFindsFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &model{tick: 2 * time.Second, opened: time.Now(), reports: 500 * time.Millisecond}
		const timeout = 10 * time.Second
		broken := false
		for range 10 {
			time.Sleep(timeout / 3)
			now := time.Now()
			broken = broken || now.Add(timeout).After(m.lastSeen(now).Add(timeout))
			m.noted = append(m.noted, now)
		}
		if !broken {
			t.Error("counting from the last answered renewal passes the model")
		}
	})
}

// asleepSince is t as a machine remembers it that has slept for d since: its boot clock has gone on,
// and its monotonic clock has stood still.
func asleepSince(at bootclock.Instant, d time.Duration) bootclock.Instant {
	at.Boot -= d
	return at
}

// The machine sleeps after the last request that was answered. The servers have counted that time,
// so that what is proven is worth as much less.
func TestRenewalTimesCountSleep(t *testing.T) {
	const timeout, sleep = 10 * time.Second, 4 * time.Second
	began := bootclock.Now()
	tr := newRenewalTimes(timeout, renewal{began, began})
	later := func(d time.Duration) bootclock.Instant {
		return bootclock.Instant{At: began.At.Add(d), Boot: began.Boot + d}
	}
	for range 60 {
		began = later(100 * time.Millisecond)
		tr.answered(renewal{later(-10 * time.Millisecond), began}, bootclock.Instant{})
	}
	awake := tr.worth(began)
	if awake < timeout/2 {
		t.Fatalf("worth %s, so that this shows nothing", awake)
	}
	tr.proven = asleepSince(tr.proven, sleep)
	for i, r := range tr.unproven {
		tr.unproven[i] = renewal{asleepSince(r.sent, sleep), asleepSince(r.answered, sleep)}
	}
	if granted := tr.worth(began); granted != awake-sleep {
		t.Errorf("worth %s after %s of sleep, and %s without", granted, sleep, awake)
	}
}
