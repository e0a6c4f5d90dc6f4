package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/pushqueue"
)

// errForgotten is the answer to a Leave that finds nothing, after one that was not answered, if
// the store may have lost the entry by itself.
var errForgotten = fmt.Errorf("there is no such entry, but another server answers, or it was started anew: %w", driver.ErrForgotten)

// Leave removes the entry.
//
// If the answer is lost, the core asks again, and takes "no such entry" for the first one's
// success. That holds for a store that forgets nothing. A replica that was promoted without
// the newest commits has forgotten grants, and so has a server that crashed before they were
// on its disk: the lock may have been another's before the first Leave was sent. Both can be
// seen, since the answer says which run of which server gives it, and then it is not known
// what the first Leave did. A restart that forgot nothing looks the same: it too makes an
// unknown of a release whose answer was lost, and of no other.
func (s *session) Leave(ctx context.Context, t *ticket, again bool) error {
	if there, err := s.leaveRow(ctx, t); err != nil || there {
		return s.table.gone(err)
	}
	var tried, there bool
	var server uint64
	var err error
	if !again { // after a lost answer by another connection
		tried, there, server, err = s.wakeups.leave(ctx, t.Request.Name, t.Request.ID)
	}
	if !tried {
		there, server, err = s.leave(ctx, s.table.work, t.Request.Name, t.Request.ID)
	}
	switch err = s.table.gone(err); {
	case err != nil && !errors.Is(err, driver.ErrGone):
		return err
	case there:
		return nil
	case again && t.ElsewhereThan(origin(server)): // without the tables, server is 0
		return errForgotten
	}
	return driver.ErrGone
}

// Publish replaces the value of the entry. One whose answer was lost may still wait at the
// server, or in the network, while a later one is confirmed.
//
// That nothing was replaced means that there is no entry that holds: no other client publishes under this id,
// and a number is used once.
func (s *session) Publish(ctx context.Context, t *ticket, value []byte, number uint64) (there bool, err error) {
	st := s.table
	n, err := int64(0), error(nil)
	if s.rows.has(t) { // looked for in the order in which it moves
		n, err = run(ctx, st.work, st.named("UPDATE {p}names SET h_value = ?, h_edition = ? WHERE name = ? AND state = 1 AND h_id = ? AND h_session = ? AND h_edition < ?",
			value, number, t.Request.Name, t.Request.ID, s.id, number))
	}
	if err == nil && n == 0 {
		n, err = run(ctx, st.work, st.named("UPDATE {p}entries SET value = ?, edition = ? WHERE name = ? AND id = ? AND session = ? AND granted IS NOT NULL AND edition < ?",
			value, number, t.Request.Name, t.Request.ID, s.id, number))
	}
	return n > 0, st.gone(err)
}

// Downgrade makes the held entry smaller: one call, and one transaction of the server's, so
// applied as a whole or not at all if we die under it.
func (s *session) Downgrade(ctx context.Context, t *ticket, units int64) (there bool, err error) {
	st := s.table
	var wakeup sql.Null[uint64]
	err = row(ctx, st.work, st.named("CALL {p}downgrade_2(?, ?, ?, ?)", t.Request.Name, t.Request.ID, units, s.id), &there, &wakeup)
	s.wakeups.wake(wakeup)
	return there, st.gone(err)
}

// Adopt moves another session's entry to ours, in one call.
func (s *session) Adopt(ctx context.Context, t *ticket, id string, seq uint64) (pushqueue.Answer, error) {
	r := t.Request
	said, edition := 0, uint64(0)
	text := s.table.named("CALL {p}adopt_2(?, ?, ?, ?, ?, ?, ?, ?, ?)",
		r.Name, id, seq, r.ID, s.id, r.Units, r.Capacity, r.Since.UnixMicro(), r.Owner)
	if err := row(ctx, s.table.work, text, &said, &edition); err != nil {
		return pushqueue.Answer{}, s.table.gone(err)
	}
	switch said {
	case 0:
		return pushqueue.Answer{State: pushqueue.Held, Seq: seq, Number: edition}, nil
	case saidNoSession:
		return pushqueue.Answer{State: pushqueue.Dead}, nil
	}
	return pushqueue.Answer{State: pushqueue.Gone}, nil
}

// leave removes an entry of ours, and reports whether it existed, and which run of which server
// said so. Then it tells those that wait: of our own the one that was granted, which the answer
// names; of others by our wake-up lock.
func (s *session) leave(ctx context.Context, q querier, name, id string) (there bool, server uint64, err error) {
	there, server, wakeup, err := s.depart(ctx, q, name, id, "NULL")
	s.wakeups.wake(wakeup)
	return there, server, err
}

// depart is leave, but for the wake-up lock: low is the lowest that the connection has, or NULL.
func (s *session) depart(ctx context.Context, q querier, name, id string, low expression) (there bool, server uint64, wakeup sql.Null[uint64], err error) {
	var seq sql.Null[uint64]
	var granted sql.NullString
	err = row(ctx, q, s.table.named("CALL {p}leave_2(?, ?, ?, ?, ?)", name, id, s.id, s.id, low), &there, &server, &wakeup, &granted, &seq)
	if granted.Valid {
		s.Granted(granted.String, seq.V)
	}
	return there, server, wakeup, err
}

// leave removes an entry of a session, or of any if that is NULL. Its wake-up lock is not ours to
// release: who waits at it finds out when that session ends, or was due to be renewed, or is
// renewed.
func (t *table) leave(ctx context.Context, q querier, name, id string, of expression) (there bool, err error) {
	err = row(ctx, q, t.named("CALL {p}leave_2(?, ?, ?, NULL, NULL)", name, id, of), &there, new(uint64), new(any), new(any), new(any))
	return there, err
}
