package redlock

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// A release wakes the waiter that has waited longest by the clock of each server. Mostly the
// servers have seen the waiters in the same order, and all choose the same one; no promise depends
// on it. The woken waiter tries when all servers have announced the release, because the lock is
// free at a server only after its announcement; when a majority has, after waitAfterMajority for
// the others; and after waitAfterFirst in any case.
const (
	waitAfterMajority = time.Millisecond
	waitAfterFirst    = 10 * time.Millisecond
)

// announcements counts the servers that have announced one release.
type announcements struct {
	servers uint64 // one bit for each server
	round   uint64 // of timers: those of an earlier one do nothing
	later   bool   // a later attempt is scheduled already
}

// begin is called when an attempt is made. The attempt may have come too early for a release that
// a server announces from now on: it may have found the lock free at the server that announced
// first, and taken at all others. So the count starts again. An announcement of a release that the
// attempt has seen everywhere costs one more attempt, unless this one has won.
func (w *announcements) begin() {
	w.servers = 0
	w.round++
}

// releaseAnnounced handles "ID", for the first waiter, and "ID later", for the second.
func (s *session) releaseAnnounced(i int, text string) {
	id, how, _ := strings.Cut(text, " ")
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tickets[id]
	switch {
	case t == nil || t.holdsLocked():
	case how != "":
		t.lookLaterLocked()
	default:
		t.announcedLocked(i)
	}
}

func (t *ticket) announcedLocked(i int) {
	w, s := &t.announced, t.session
	bit := uint64(1) << i
	if w.servers&bit != 0 { // of another release
		w.servers = 0
		w.round++
	}
	w.servers |= bit
	n := 0
	for j := range s.store.nodes {
		n += int(w.servers >> j & 1)
	}
	switch round := w.round; n {
	case len(s.store.nodes):
		w.round++ // the timers have no effect any more
		t.signal.Notify()
	case s.store.quorum:
		time.AfterFunc(waitAfterMajority, func() { t.signalIf(round) })
	case 1:
		time.AfterFunc(waitAfterFirst, func() { t.signalIf(round) })
	}
}

// signalIf signals if no attempt has been made and no signal received since the round began.
func (t *ticket) signalIf(round uint64) {
	t.session.mu.Lock()
	defer t.session.mu.Unlock()
	if t.announced.round == round {
		t.announced.round++
		t.signal.Notify()
	}
}

// later is after how long the second waiter tries, in case the first one has died: long after a
// live one would have taken the lock.
const later = 250 * time.Millisecond

func (t *ticket) lookLaterLocked() {
	if t.announced.later {
		return
	}
	t.announced.later = true
	time.AfterFunc(later+rand.N(later/4), func() {
		t.session.mu.Lock()
		t.announced.later = false
		t.session.mu.Unlock()
		t.signal.Notify()
	})
}

// subscribed is called when a subscription is established, the first time or again: messages that
// were published meanwhile are lost, and the other servers' may not be enough.
func (s *session) subscribed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tickets {
		if !t.holdsLocked() && t.attempt > 0 {
			t.lookLaterLocked()
		}
	}
}

// How long a waiter waits at most for a lock whose release is not announced, for one without
// expiry, and between attempts that collide with others.
const (
	foreignPoll = 500 * time.Millisecond
	noExpiry    = 5 * time.Second
	mostPace    = 500 * time.Millisecond
	leastPace   = 4 * time.Millisecond
)

// untilFree is when the holder's keys have expired on so many servers that a majority is
// free, with some jitter, so that not all waiters try together.
func (c *count) untilFree(quorum int, ours bool) time.Duration {
	var left []time.Duration
	for _, b := range slices.Concat(c.denied, c.closed) {
		if b.left < 0 {
			b.left = noExpiry
		}
		left = append(left, b.left)
	}
	slices.Sort(left)
	until := left[quorum-c.granted-1] // at least quorum have denied
	if !ours {
		until = min(until, foreignPoll)
	}
	return withJitter(until)
}

// withJitter lets waiters that wait for the same moment try one after the other.
func withJitter(left time.Duration) time.Duration { return left + rand.N(left/8+10*time.Millisecond) }

// pause is for attempts after which no holder is known. If the lock was left to the waiters, we are
// one of them now, and are woken in turn. In case all of those in front have died we try later, the
// later the more they are: one at the end of many would get nothing by it, and its attempt would
// meet those of the others. Otherwise attempts have collided and all failed, or the answer of a
// server is missing that would have shown the holder. A random pause separates them. It is long in
// comparison with an attempt, grows with each collision, and with the delay of the network, so that
// no delay makes attempts collide for ever.
func (t *ticket) pause(c count, took time.Duration) time.Duration {
	ahead := int64(-1)
	for _, b := range c.denied {
		if b.value == "" && !t.request.NoWait {
			ahead = max(ahead, b.ahead)
		}
	}
	if ahead >= 0 {
		most := max(later, t.session.opts.TTL/3)
		return min(later*time.Duration(1+min(ahead, 1000)), most) + rand.N(later/4)
	}
	window := max(leastPace, 4*took) << min(t.collisions, 6)
	t.collisions++
	return rand.N(min(window, mostPace)) + time.Millisecond
}
