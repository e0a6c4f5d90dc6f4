package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"
)

// wakeups are the locks of GET_LOCK at which other sessions wait until an entry of ours has left;
// the procedure listen says why no departure is missed. They are taken on the connection of the
// renewals, so that the server frees them when this process has ended, or cannot be reached any
// more.
//
// A wake-up lock is taken before its number can be seen, since several are taken ahead: a departure
// counts the number up in its own transaction. If departures are quicker than the waking, or the
// connection has broken, the wake-up lock of the present number is free for a moment: who waits for
// it finds that, and looks in pauses that grow.
//
// A departure is sent on that connection where nothing else is done with it, and then the server
// releases when it has committed; else the client does when it has the answer.
//
// If the process dies between the commit and the waking, the server frees the wake-up locks. If the
// answer of a departure is lost, the number is told by that of the next request, or of the next
// renewal.
type wakeups struct {
	session *session
	off     bool // the nodes of a Galera cluster do not share GET_LOCK

	number uint64 // the greatest that we were told; guarded by the session's lock
	waking bool   // a goroutine wakes; guarded by the session's lock

	// Guarded by the turn of the renewals' connection.
	on        *sql.Conn // the connection that has the wake-up locks from low to high, without high
	low, high uint64
}

// wakeupsAhead is how many wake-up locks are taken before their numbers are seen.
const wakeupsAhead = 4

// wakeupsLeast is how many of them are to be left when a departure has released one without our
// doing.
const wakeupsLeast = 2

// wakeupWait is how long the taking of a wake-up lock waits, in seconds: for clients that pass
// through it because it was free.
const wakeupWait = 1

// wake wakes those that wait at wake-up locks before this number, if there is one. It does not wait
// for that: the departure is done.
func (b *wakeups) wake(number sql.Null[uint64]) {
	s := b.session
	s.Lock()
	defer s.Unlock()
	if !number.Valid || b.off || number.V <= b.number || s.Closed() {
		return // closing the session ends the connection, and with it the wake-up locks
	}
	b.number = number.V
	if b.waking {
		return // one statement wakes for all departures that were confirmed before it is sent
	}
	b.waking = true
	s.listeners.Add(1)
	go b.wakeAll()
}

func (b *wakeups) wakeAll() {
	s := b.session
	defer s.listeners.Done()
	for woken := uint64(0); ; {
		s.Lock()
		number := b.number
		if number == woken || s.Closed() {
			b.waking = false
			s.Unlock()
			return
		}
		s.Unlock()
		// An error closes the connection, which frees the wake-up locks: others are taken on a new
		// one, now or with the next renewal.
		for attempts := 0; attempts < 2 && b.refillOnce(number) != nil; attempts++ {
		}
		woken = number
	}
}

// patience is for how long the connection may be used: it is that of the renewals, which must not
// wait for long.
func (b *wakeups) patience() time.Duration { return max(b.session.Options.TTL/6, minTTL) }

// leave removes an entry and wakes, by one call. tried is false where that cannot be done now, and
// nothing was sent. If it is not answered in its time, nothing is known: the caller asks again, by
// another connection.
func (b *wakeups) leave(ctx context.Context, name, id string) (tried, there bool, server uint64, err error) {
	if b.off {
		return false, false, 0, nil
	}
	s := b.session
	ctx, cancel := context.WithTimeout(ctx, b.patience())
	defer cancel()
	tried, err = s.renewal.doNow(func(c *sql.Conn) (bool, error) {
		if b.on != c {
			return false, nil // it has no wake-up locks; the next renewal takes some
		}
		var wakeup sql.Null[uint64]
		there, server, wakeup, err = s.depart(ctx, c, name, id, expression(literal(b.low)))
		if err != nil || !wakeup.Valid {
			return true, err
		}
		if there { // else it was another departure that has counted up
			b.low++
		}
		if b.low != wakeup.V || b.high < wakeup.V+wakeupsLeast {
			b.wake(wakeup) // which also takes others
			return true, nil
		}
		s.Lock()
		b.number = max(b.number, wakeup.V)
		s.Unlock()
		return true, nil
	})
	return tried, there, server, err
}

func (b *wakeups) refillOnce(number uint64) error {
	s := b.session
	ctx, cancel := context.WithTimeout(s.Done, b.patience())
	defer cancel()
	return s.renewal.do(ctx, func(c *sql.Conn) error { return b.refill(ctx, c, number) })
}

// refill releases the wake-up locks before the number, and takes those that follow, by one
// statement if there is anything to do. The caller has the turn of the connection.
func (b *wakeups) refill(ctx context.Context, c *sql.Conn, number uint64) error {
	if b.off {
		return nil
	}
	b.session.Lock()
	b.number = max(b.number, number)
	number = b.number
	b.session.Unlock()
	if b.on != c {
		b.on, b.low, b.high = c, number, number // another connection has none
	}
	var calls []string
	for i := b.low; i < min(number, b.high); i++ {
		calls = append(calls, "RELEASE_LOCK("+b.name(i)+")")
	}
	from, to := max(b.high, number), number+wakeupsAhead
	for i := from; i < to; i++ {
		calls = append(calls, statement("GET_LOCK("+b.name(i)+", ?)", wakeupWait))
	}
	if len(calls) == 0 {
		return nil
	}
	got, into := make([]sql.NullInt64, len(calls)), make([]any, len(calls))
	for i := range got {
		into[i] = &got[i]
	}
	err := row(ctx, c, "SELECT "+strings.Join(calls, ", "), into...)
	for _, n := range got {
		if err == nil && n.Int64 != 1 {
			err = errWakeup
		}
	}
	if err != nil {
		b.on = nil
		if answered(err) || errors.Is(err, errWakeup) {
			_, _ = run(ctx, c, "DO RELEASE_ALL_LOCKS()") // the connection is used by us alone
			return nil
		}
		return err
	}
	b.low, b.high = number, to
	return nil
}

// errWakeup says that a wake-up lock could not be taken: another program has it.
var errWakeup = errors.New("a lock of GET_LOCK is taken")

// name is that of a wake-up lock, as listen makes it. It has at most 59 characters; GET_LOCK takes
// 64.
func (b *wakeups) name(number uint64) string {
	return statement("CONCAT('hasp:wakeup:', ?, ':', ?)", b.session.id, number)
}
