package mysqllock

import (
	"context"
	"database/sql"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/pushqueue"
)

var _ pushqueue.Store[extra] = (*session)(nil)

// Enter makes the entry, or asks for it.
//
// If the answer is lost, the request may still be under way at the server. Asked again, it
// finds the entry by its unique id. If instead the ticket leaves, and the request arrives
// after that, the entry is found by the next renewal, which compares what the store has of
// this session with what the session knows.
func (s *session) Enter(ctx context.Context, t *ticket, mode pushqueue.Mode) (pushqueue.Answer, error) {
	how := modeWait
	switch {
	case mode == pushqueue.Ask:
		how = modeAsk
	case t.Request.NoWait:
		how = modeTry
	}
	if mode == pushqueue.First {
		alone, known := s.rows.wasAlone(t.Request.Name)
		if alone {
			if seq, err := s.enterRow(ctx, t); err != nil || seq != 0 {
				return pushqueue.Answer{State: pushqueue.Held, Seq: seq}, err
			}
		}
		if !known {
			how += modeFirst
		}
	}
	a, err := s.table.enter(ctx, s.id, how, t.Request)
	if err != nil {
		if number(err) == 0 && mode != pushqueue.Ask {
			s.rows.lost(t)
		}
		return pushqueue.Answer{}, err
	}
	s.rows.note(t, a.inRow)
	switch a.said {
	case saidBusy:
		return pushqueue.Answer{State: pushqueue.Busy, Holder: a.holder}, nil
	case saidMismatch:
		return pushqueue.Answer{}, &driver.MismatchError{Name: t.Request.Name, Want: t.Request.Capacity, Found: a.capacity}
	case saidGone:
		return pushqueue.Answer{State: pushqueue.Gone}, nil
	case saidNoSession:
		return pushqueue.Answer{State: pushqueue.Dead}, nil
	}
	if a.held {
		return pushqueue.Answer{State: pushqueue.Held, Seq: a.seq}, nil
	}
	s.Lock()
	t.Extra.wakeup, t.Extra.ahead = a.wakeup, a.ahead
	s.Unlock()
	return pushqueue.Answer{State: pushqueue.Waits, Seq: a.seq, Retry: s.retry()}, nil
}

// answer is that of enter.
type answer struct {
	said     int
	seq      uint64
	held     bool
	capacity int64
	stale    int // what is left of dead sessions, if the lock is taken
	holder   string
	inRow    bool   // the entry is in the row of its name
	wakeup   string // of the session in the way of an entry that waits; "" is unknown
	ahead    int    // how many must leave before it
}

// The answers of enter, apart from 0.
const (
	saidBusy      = 1
	saidMismatch  = 2
	saidGone      = 3
	saidNoSession = 5 // of adopt, too
)

// What is left of dead sessions.
const (
	staleSessions = iota + 1 // somewhere, and no client removes it
	staleEntries             // in this queue, and a client does, which takes a second at most
)

// The modes of enter.
const (
	modeWait = iota
	modeTry
	modeAsk
	modeFirst // is added to the first two where the client does not know the name
)

// removalPause is how long to wait for another client to remove the dead sessions.
const removalPause = 20 * time.Millisecond

// removalMost is how long a request waits for that: a client that claims and dies is taken for dead
// after a second, and then another claims.
const removalMost = 3 * time.Second

// passDead removes what dead sessions have left, or gives the client that does a moment: also where
// it is about to, and has claimed nothing yet.
func (t *table) passDead(ctx context.Context, stale int) error {
	if stale == staleSessions {
		if some, err := t.removeDead(ctx, 1); some || err != nil {
			return err
		}
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(removalPause):
		return nil
	}
}

// enter makes an entry, or asks for it. Where the lock is taken, what dead sessions have left may
// be in the way: it is removed, and then it asks again.
func (t *table) enter(ctx context.Context, session string, mode int, r driver.Request) (answer, error) {
	for began := time.Now(); ; {
		a, err := t.enterOnce(ctx, session, mode, r)
		if err != nil || a.stale == 0 || time.Since(began) > removalMost || t.passDead(ctx, a.stale) != nil {
			return a, err // also what could not be removed: another client will, and the answer is true
		}
	}
}

func (t *table) enterOnce(ctx context.Context, session string, mode int, r driver.Request) (a answer, err error) {
	text := t.named("CALL {p}enter_2(?, ?, ?, ?, ?, ?, ?, ?, ?)",
		mode, r.Name, r.ID, session, r.Units, r.Capacity, r.Since.UnixMicro(), r.Owner, r.Value)
	var seq sql.Null[uint64]
	var capacity sql.NullInt64
	var holder, wakeup sql.NullString
	err = onConn(ctx, t.work, func(c *sql.Conn) error {
		return row(ctx, c, text, &a.said, &seq, &a.held, &capacity, &a.stale, &holder, &a.inRow, &wakeup, &a.ahead)
	})
	if err != nil {
		return a, t.gone(err)
	}
	a.seq, a.capacity, a.holder, a.wakeup = seq.V, capacity.Int64, holder.String, wakeup.String
	return a, nil
}
