package mysqllock

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hasplock/hasp/driver"
)

// listenMost bounds one call of listen. It is how long a connection that its client has left
// in silence goes on looking.
const listenMost = 5 * time.Second

// The pause after a call that failed.
const (
	firstPause = 20 * time.Millisecond
	mostPause  = time.Second
)

// listener follows the session's bell while something waits. Whoever starts the listening
// anew goes on where the last one ended: what was told is not told again.
type listener struct {
	line  *line
	bell  uint64 // the last ring that was told
	place int    // how far in front we were, and since when; the server's, handed back
	still int64
}

// listenLocked starts the listening; the caller has session.mu and knows that an entry
// waits. There is one for all waiters of a session, and it ends when nothing waits any more.
func (s *session) listenLocked() {
	if s.listening || s.closed {
		return
	}
	s.listening = true
	s.ear.place = -1 // another wait begins
	s.listeners.Add(1)
	go func() {
		defer s.listeners.Done()
		pause := firstPause
		for s.waits() {
			if err := s.listen(s.done); err == nil {
				pause = firstPause
				continue
			}
			// Why is told by the requests of the waiters themselves, who ask now and then.
			timer := time.NewTimer(pause/2 + rand.N(pause/2))
			select {
			case <-s.done.Done():
				timer.Stop()
			case <-timer.C:
			}
			pause = min(2*pause, mostPause)
		}
	}()
}

// waits reports whether there is anything to listen for. If not, the listening counts as
// ended from here on, under the same lock under which the next waiter would start it, and
// its connection is lent to others.
func (s *session) waits() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		for _, t := range s.tickets {
			if t.confirmed && !t.held && !t.left {
				return true
			}
		}
	}
	s.listening = false
	s.ear.line.rest()
	return false
}

// listen makes one call and hands out what it brought. A call that is not answered in its
// time is given up with its connection.
func (s *session) listen(ctx context.Context) error {
	l := &s.ear
	most := min(listenMost, s.opts.TTL)
	ctx, cancel := context.WithTimeoutCause(ctx, most+max(time.Second, s.opts.TTL/2), errSilent)
	defer cancel()
	text := s.table.named("CALL {p}listen_1(?, ?, ?, ?, ?)", s.id, l.bell, l.place, l.still, most.Microseconds())
	bell, stale, found, whole := l.bell, false, false, false
	granted := map[string]uint64{}
	err := l.line.do(ctx, func(c *sql.Conn) error {
		err := each(ctx, c, text, func(r *sql.Rows) error {
			var id sql.NullString
			var seq sql.Null[uint64]
			found = true
			if err := r.Scan(&bell, &stale, &l.place, &l.still, &id, &seq); err != nil {
				return err
			}
			if id.Valid {
				granted[id.String] = seq.V
			}
			return nil
		})
		whole = err == nil
		if whole && stale {
			err = s.table.reap(ctx, c)
		}
		return err
	})
	s.grant(granted)
	if whole && found {
		l.bell = bell // of an answer that was cut short, the rest is still to be told
	}
	if len(granted) > 0 {
		l.place = -1 // whatever still waits, it is something else
	}
	if err == nil && !found {
		s.opts.Gone("", fmt.Errorf("%w: the session has expired", driver.ErrGone))
		err = driver.ErrGone // and not again at once
	}
	return err
}

// grant hands out what the bell told of. Seq guards against an id's earlier entry.
func (s *session) grant(granted map[string]uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, seq := range granted {
		t := s.tickets[id]
		if t == nil {
			continue
		}
		// Kept for one that is not confirmed yet: its own answer may have been on its way since
		// before the grant, and no bell rings twice.
		t.granted = seq
		if t.confirmed && t.seq == seq {
			t.held = true
			t.bell.Notify()
		}
	}
}
