package mysqllock

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"time"
)

// listenMost bounds one call of listen. It is how long the server goes on polling for a client that
// has ended in silence.
const listenMost = 5 * time.Second

// The pause after a call that failed.
const (
	firstPause = 20 * time.Millisecond
	mostPause  = time.Second
)

// listener follows the grants of the session while something waits. When listening starts anew it
// goes on where the last one ended: what was told is not told again.
type listener struct {
	conn   *keptConn
	grants uint64 // how many have been told
	rank   int    // where in the queue we were, and since when; the server's, handed back
	still  int64
}

// listenLocked starts the listening; the caller has the session's lock and knows that an entry
// waits. There is one for all waiters of a session, and it ends when nothing waits any more.
func (s *session) listenLocked() {
	if s.listening || s.Closed() {
		return
	}
	s.listening = true
	s.listener.rank = -1 // another wait begins
	s.listeners.Add(1)
	go func() {
		defer s.listeners.Done()
		pause := firstPause
		for s.waits() {
			if err := s.listen(s.Done); err == nil {
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

// waits reports whether there is anything to listen for. If not, the listening counts as
// ended from here on, under the same lock under which the next waiter would start it, and
// its connection goes back to the pool.
func (s *session) waits() bool {
	s.Lock()
	defer s.Unlock()
	if !s.Closed() {
		for t := range s.Tickets() {
			if t.Waits() {
				return true
			}
		}
	}
	s.listening = false
	s.listener.conn.giveBack()
	return false
}

// listen makes one call and hands out what it brought. A call that is not answered in its
// time is given up with its connection.
func (s *session) listen(ctx context.Context) error {
	l := &s.listener
	most := min(listenMost, s.Options.TTL)
	ctx, cancel := context.WithTimeoutCause(ctx, most+max(time.Second, s.Options.TTL/2), errSilent)
	defer cancel()
	text := s.table.named("CALL {p}listen_1(?, ?, ?, ?, ?)", s.id, l.grants, l.rank, l.still, most.Microseconds())
	grants, stale, found, whole := l.grants, false, false, false
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
		if whole && stale {
			err = s.table.removeDead(ctx, c)
		}
		return err
	})
	for id, seq := range granted {
		s.Granted(id, seq) // kept where the answer "wait" is still under way: it is not told twice
	}
	if whole && found {
		l.grants = grants // of an answer that was cut short, the rest is still to be told
	}
	if len(granted) > 0 {
		l.rank = -1 // what still waits is something else
	}
	if err == nil && !found {
		err = s.Dead() // and not again at once
	}
	return err
}
