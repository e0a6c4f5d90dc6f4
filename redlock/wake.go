package redlock

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// A release wakes the waiter that its server finds to be the longest waiting. Each server goes
// by its own clock, and has seen them come in the same order as the others, mostly, so that all
// choose the same one: it is no promise, and none depends on it. The woken waiter tries when all servers have announced it,
// for the lock is free at a server when that one tells and not before; when a majority has,
// after waitAfterMajority for the others; and after waitAfterFirst in any case.
const (
	waitAfterMajority = time.Millisecond
	waitAfterFirst    = 10 * time.Millisecond
)

// announcements counts the servers that have announced one release.
type announcements struct {
	servers uint64 // one bit for each server
	round   uint64 // of timers: those of an earlier one do nothing
	later   bool   // a look is due already
}

// begin is called when an attempt is made. A server that announces from now on, announces what the attempt
// may have come too early for: it may have found the lock free at the server that announced first,
// and taken at all others. So it counts anew. An announcement of a release that the attempt has
// seen everywhere costs one attempt more, unless this one has won.
func (w *announcements) begin() {
	w.servers = 0
	w.round++
}

// releaseAnnounced gets "ID", the waiter whose turn it is, or "ID later", the one behind it.
func (s *session) releaseAnnounced(i int, text string) {
	id, how, _ := strings.Cut(text, " ")
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tickets[id]
	switch {
	case t == nil || t.held:
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
		w.round++ // the timers are of no more use
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

// later is when the one behind the woken waiter looks whether that one has taken its turn:
// long after a live one would have.
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

// subscribed is called when a subscription is established, again perhaps: what was published meanwhile
// was missed, and the other servers may not have made up for it.
func (s *session) subscribed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tickets {
		if !t.held && t.tried {
			t.lookLaterLocked()
		}
	}
}

// How long a waiter waits for a lock whose release is not announced, at the most, for one
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

// pause is for attempts after which no holder is known. If the lock was left to the waiters,
// we are one of them now, and woken in our turn. Otherwise attempts have met, and
// all of them failed, or a server's answer was missing that would have shown the holder. They
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
