package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"time"
)

// listenMost bounds one call of listen. It is how long the server goes on waiting for a client that
// has ended in silence, and when a waiter looks that missed its wake-up lock: one whose predecessor
// was removed by an operator, say.
const listenMost = 5 * time.Second

// secondMost bounds a call of the second listener.
const secondMost = time.Second

// After firstLook, and that again for each so many that must leave before, a waiter looks though
// its wake-up lock was not released, as in the procedure.
const (
	firstLook = time.Second
	lookEach  = 32
)

// The pause after a call that failed.
const (
	firstPause = 20 * time.Millisecond
	mostPause  = time.Second
)

// listener follows the grants of the session while something waits. When listening starts anew it
// goes on where the last one ended: what was told is not told again.
type listener struct {
	conn   *keptConn
	rank   int // where in the queue we were, and since when; the server's, handed back
	still  int64
	wakeup string        // where the next call of the first waits, at first
	first  time.Duration // for so long

	// Guarded by the session's lock.
	grants  uint64 // how many have been told; changed by the listener alone
	running bool
	calling bool // of the first: its call is under way, or about to be sent
	covered bool // of the second: a call of the first has begun since it was last needed
}

// listenLocked starts the listening; the caller has the session's lock and knows that an entry
// waits. There is one call for all waiters of a session, and it ends when nothing waits any more.
//
// A call that waits at a wake-up lock does not learn of an entry that begins to wait now, behind
// another session perhaps. So a second one polls for all of them, until the first call has ended.
func (s *session) listenLocked() {
	if s.Closed() {
		return
	}
	l := &s.listener
	if l.calling && !s.wakeups.off {
		l = &s.second
		l.covered, l.grants = false, max(l.grants, s.listener.grants)
	}
	if l.running {
		return // a call that polls looks at all that waits, and so does each in its beginning
	}
	l.running = true
	l.rank = -1 // another wait begins
	s.listeners.Add(1)
	go func() {
		defer s.listeners.Done()
		pause := firstPause
		for s.wanted(l) {
			err := s.listen(s.Done, l)
			s.Lock()
			l.calling = false
			s.Unlock()
			if err == nil {
				pause = firstPause
				continue
			}
			// The waiters' requests, which ask now and then, tell why.
			timer := time.NewTimer(pause/2 + rand.N(pause/2))
			select {
			case <-s.Done.Done():
				timer.Stop()
			case <-timer.C:
			}
			pause = min(2*pause, mostPause)
		}
	}()
}

// wanted reports whether there is anything to listen for, and for the second listener, whether the
// first is in a call that began before. If not, the listening counts as ended from here on, under
// the same lock under which the next waiter would start it, and its connection goes back to the
// pool.
func (s *session) wanted(l *listener) bool {
	s.Lock()
	defer s.Unlock()
	if l == &s.listener {
		s.second.covered = true
	}
	l.wakeup, l.first = "", 0
	if !s.Closed() && (l == &s.listener || !l.covered) {
		l.calling = s.waitingLocked(l)
		if l.calling {
			return true
		}
	}
	l.running, l.calling = false, false
	l.conn.giveBack()
	return false
}

// waitingLocked reports whether anything waits. If it is one entry, the listener begins at the
// wake-up lock in its way.
func (s *session) waitingLocked(l *listener) bool {
	var one *ticket
	for t := range s.Tickets() {
		switch {
		case !t.Waits():
		case one != nil:
			return true
		default:
			one = t
		}
	}
	if one != nil && l == &s.listener && !s.wakeups.off {
		l.wakeup, one.Extra.wakeup = one.Extra.wakeup, ""
		l.first = (firstLook*3/4 + rand.N(firstLook/2)) * time.Duration(max(1, one.Extra.ahead/lookEach))
	}
	return one != nil
}

// listen makes one call and hands out what it brought. A call that is not answered in its
// time is given up with its connection.
func (s *session) listen(ctx context.Context, l *listener) error {
	most, atWakeups := min(listenMost, s.Options.TTL), 1
	switch {
	case s.wakeups.off:
		atWakeups = 0
	case l == &s.second:
		most, atWakeups = min(secondMost, most), 0
	}
	ctx, cancel := context.WithTimeoutCause(ctx, most+max(2*time.Second, s.Options.TTL/2), errSilent)
	defer cancel()
	s.Lock()
	grants := l.grants
	s.Unlock()
	wakeup := expression("NULL")
	if l.wakeup != "" {
		wakeup = expression(literal(l.wakeup))
	}
	text := s.table.named("CALL {p}listen_2(?, ?, ?, ?, ?, ?, ?, ?)",
		s.id, grants, l.rank, l.still, most.Microseconds(), atWakeups, wakeup, min(l.first, most).Microseconds())
	stale, found, whole := false, false, false
	granted := map[string]uint64{}
	err := l.conn.do(ctx, func(c *sql.Conn) error {
		err := each(ctx, c, text, func(r *sql.Rows) error {
			var id sql.NullString
			var seq sql.Null[uint64]
			found = true
			if err := r.Scan(&grants, &stale, &l.rank, &l.still, &id, &seq); err != nil {
				return err
			}
			if id.Valid {
				granted[id.String] = seq.V
			}
			return nil
		})
		whole = err == nil
		return err
	})
	for id, seq := range granted {
		s.Granted(id, seq) // kept where the answer "wait" is still under way: it is not told twice
	}
	if whole && found {
		s.Lock()
		l.grants = grants // of an answer that was cut short, the rest is still to be told
		s.Unlock()
	}
	if len(granted) > 0 {
		l.rank = -1 // what still waits is something else
	}
	switch {
	case err == nil && !found:
		err = s.Dead() // and not again at once
	case err == nil && stale:
		s.removeDeadLater()
		err = errUnclaimed
	}
	return err
}

// errUnclaimed says that dead sessions are to be removed: the next call waits until they are
// claimed, or it would end at once as well.
var errUnclaimed = errors.New("dead sessions are left")
