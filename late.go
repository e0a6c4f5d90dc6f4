package hasp

import (
	"fmt"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/bootclock"
)

// lateEntries are those that the last renewal did not reach while it reached others (a node of a
// cluster is silent, or the store is slow and they are many): KeepAlive names them, with the time
// left for each (driver.PartialRenewal). Each is trusted for as long as its own time lasts, and the
// others go on. The map is nearly always nil. Rejected: the oldest entry's time for all (a silent
// node took every lock with it); a deadline in each entry (session).
type lateEntries map[*entry]lateness

// lateness is the driver's report about one of them.
type lateness struct {
	sent    bootclock.Instant // just before the call that did not reach it
	granted time.Duration     // what was left of its time then

	unanswered bool // its Enqueue was under way
}

// left is for how long it may still be trusted.
func (l lateness) left(margin time.Duration) time.Duration {
	elapsed, _ := bootclock.Since(l.sent)
	return l.granted - margin - elapsed
}

// soonest is when the first of them is over.
func (m lateEntries) soonest(margin time.Duration) time.Duration {
	return min(m.first(margin, false), m.first(margin, true))
}

// first is soonest among those whose Enqueue was answered, or among those whose was not.
func (m lateEntries) first(margin time.Duration, unanswered bool) time.Duration {
	least := driver.Forever
	for _, l := range m {
		if l.unanswered == unanswered {
			least = min(least, l.left(margin))
		}
	}
	return least
}

// lateLocked finds the entries of those ids. One that was released meanwhile is no longer ours.
func (s *session) lateLocked(sent bootclock.Instant, p *driver.PartialRenewal) lateEntries {
	late := make(lateEntries, len(p.Late))
	for id, granted := range p.Late {
		if e := s.entries[id]; e != nil {
			late[e] = lateness{sent, granted, p.Unanswered[id]}
		}
	}
	return late
}

// checkLate is the trust timer's look at them.
func (s *session) checkLate() {
	s.mu.Lock()
	var over []*entry
	for e, l := range s.late {
		if l.left(s.margin) <= 0 {
			over = append(over, e)
		}
	}
	s.mu.Unlock()
	for _, e := range over {
		s.expireLate(e)
	}
}

// expireLate ends one entry as the session's end would, and removes what is left of it in the store
// when its time there is over (see untilOverLocked). A release under way goes on: it removes its
// entry itself, and is ended like others (checkLeaving).
func (s *session) expireLate(e *entry) {
	s.mu.Lock()
	l, isLate := s.late[e]
	err, margin := s.lastErr, s.margin
	confirmed := l.sent.At.Add(l.granted - s.granted) // when it had all of its time left
	s.mu.Unlock()
	if !isLate || l.left(margin) > 0 {
		return // somebody else was first, or it was renewed meanwhile
	}
	was := e.lose(ReasonExpired, err, confirmed)
	s.mu.Lock()
	delete(s.late, e) // after lose: a process that is stopped in between finds it late at its next look
	if was == held || was == pending {
		delete(s.entries, e.id)
	}
	s.mu.Unlock()
	switch was {
	case pending:
		e.interrupt(fmt.Errorf("%w: it was not renewed in time", driver.ErrGone)) // queue up anew
	case held:
	default:
		return
	}
	s.client.inBackground(func() {
		if sleep(s.done, margin) {
			s.client.clean(s.done, s.done, e.ticket.Leave) // of no call; and the entry may not have a lease yet
		}
	})
}
