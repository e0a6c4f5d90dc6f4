package redlock

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// A release wakes the waiter that its server finds to be the longest waiting. Each server goes
// by its own clock, and has seen them come in the same order as the others, mostly, so that all
// choose the same one: it is no promise, and none depends on it. Who is woken tries when all servers have told it,
// for the lock is free at a server when that one tells and not before; when a majority has,
// after a moment for the others; and after a longer moment whoever has.
const (
	momentOfMajority = time.Millisecond
	momentOfFirst    = 10 * time.Millisecond
)

// waking counts the servers that have told of one release.
type waking struct {
	told  uint64 // one bit for each server
	round uint64 // of timers: those of an earlier one do nothing
	later bool   // a look is due already
}

// begin is called when an attempt is made. Who tells from now on, tells of what the attempt
// may have come too early for: it may have found the lock free at the server that told first,
// and taken at all others. So it counts anew. What is told of a release that the attempt has
// seen everywhere costs one attempt more, unless this one has won.
func (w *waking) begin() {
	w.told = 0
	w.round++
}

// told is told "ID", the waiter whose turn it is, or "ID later", the one behind it.
func (s *session) told(i int, text string) {
	id, how, _ := strings.Cut(text, " ")
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tickets[id]
	switch {
	case t == nil || t.held:
	case how != "":
		t.lookLaterLocked()
	default:
		t.toldLocked(i)
	}
}

func (t *ticket) toldLocked(i int) {
	w, s := &t.wake, t.session
	bit := uint64(1) << i
	if w.told&bit != 0 { // of another release
		w.told = 0
		w.round++
	}
	w.told |= bit
	n := 0
	for j := range s.store.nodes {
		n += int(w.told >> j & 1)
	}
	switch round := w.round; n {
	case len(s.store.nodes):
		w.round++ // the timers are of no more use
		t.bell.Ring()
	case s.store.quorum:
		time.AfterFunc(momentOfMajority, func() { t.ringIf(round) })
	case 1:
		time.AfterFunc(momentOfFirst, func() { t.ringIf(round) })
	}
}

// ringIf rings if no attempt has been made and no ring been heard since the round began.
func (t *ticket) ringIf(round uint64) {
	t.session.mu.Lock()
	defer t.session.mu.Unlock()
	if t.wake.round == round {
		t.wake.round++
		t.bell.Ring()
	}
}

// later is when the one behind the woken waiter looks whether that one has taken its turn:
// long after a live one would have.
const later = 250 * time.Millisecond

func (t *ticket) lookLaterLocked() {
	if t.wake.later {
		return
	}
	t.wake.later = true
	time.AfterFunc(later+rand.N(later/4), func() {
		t.session.mu.Lock()
		t.wake.later = false
		t.session.mu.Unlock()
		t.bell.Ring()
	})
}

// missed is called when a subscription stands, again perhaps: what was published meanwhile
// was missed, and the other servers may not have made up for it.
func (s *session) missed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tickets {
		if !t.held && t.tried {
			t.lookLaterLocked()
		}
	}
}

// How long a waiter waits for a lock whose release nobody announces, at the most, for one
// without expiry, and between attempts that meet other attempts.
const (
	foreignPoll = 500 * time.Millisecond
	noExpiry    = 5 * time.Second
	mostPace    = 500 * time.Millisecond
	leastPace   = 4 * time.Millisecond
)

// untilFree is when the holder's keys have expired on so many servers that a majority is
// free, with some jitter, lest all waiters try together.
func (c *count) untilFree(quorum int, ours bool) time.Duration {
	var left []time.Duration
	for _, b := range c.denied {
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
	return until + rand.N(until/8+10*time.Millisecond)
}

// pause is for attempts after which nobody is known to hold. If the lock was left to those
// who wait, we are one of them now, and woken in our turn. Otherwise attempts have met, and
// all of them failed, or a server's answer was missing that would have told who holds. They
// come apart by chance, over a time that is long against an attempt and grows: the longer
// the network takes, the longer too. So that no delay makes them meet for ever.
func (t *ticket) pause(c count, took time.Duration) time.Duration {
	for _, b := range c.denied {
		if b.value == "" && !t.request.NoWait {
			return later + rand.N(later/4)
		}
	}
	window := max(leastPace, 4*took) << min(t.collisions, 6)
	t.collisions++
	return rand.N(min(window, mostPace)) + time.Millisecond
}
