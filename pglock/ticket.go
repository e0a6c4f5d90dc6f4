package pglock

import (
	"context"
	"fmt"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/pushqueue"
)

var _ pushqueue.Store[extra] = (*session)(nil)

// modes are how hasp_enter calls them. They say what may be there already: an ID that was never
// sent needs no looking for.
var modes = map[pushqueue.Mode]string{pushqueue.First: "first", pushqueue.Again: "again", pushqueue.Ask: "ask"}

// answer is that of hasp_enter.
type answer struct {
	state             string
	seq, retry, ahead int64 // ahead: how many wait in front, counted to four
	holder            string
}

var states = map[string]pushqueue.State{
	"row":  pushqueue.Held,
	"held": pushqueue.Held, "wait": pushqueue.Waits, "busy": pushqueue.Busy, "gone": pushqueue.Gone, "dead": pushqueue.Dead,
}

// leastRetry keeps waiters that ask because a holder seems to have expired from asking in a loop
// while its row is locked.
const leastRetry = 20 * time.Millisecond

// toAnswer also says when to ask.
//
// An expiry is not notified, so the first four waiters ask for it: one would do, more cover waiters
// that die together. The others ask once in a TTL, in case all of these died; and so do the four if
// those ahead have a longer TTL: a notification may be lost on the connection of another session,
// whose renewals find that out in the course of that one's TTL.
//
// Where no notification arrives, the first waiter asks every Poll and the others less often: a
// hand-over then costs as many requests as the first few send in that time, for any length of the
// queue.
func (s *session) toAnswer(a answer) pushqueue.Answer {
	m := pushqueue.Answer{State: states[a.state], Seq: uint64(a.seq), Retry: s.Options.TTL, Holder: a.holder}
	if a.ahead < 4 {
		m.Retry = min(max(time.Duration(a.retry)*time.Microsecond, leastRetry)+time.Duration(1+a.ahead)*time.Millisecond, m.Retry)
	}
	if !s.table.links.listens() {
		m.Poll = time.Duration(1+a.ahead) * s.table.opts.Poll
	}
	return m
}

// errOtherServer is for an entry that another server than the one that had it does not find.
var errOtherServer = fmt.Errorf("another server answers than the one that had the entry (a replica was promoted, a backup restored): %w", driver.ErrForgotten)

// Leave removes the entry. That there is none usually means that a Leave before this one was
// applied, and its answer lost. But a replica that is promoted without having every commit has
// forgotten the entry, or has never had it, and may have granted its lock to another before the
// release: whether it was held to the end is unknown. The server and its timeline distinguish the
// two cases: each promotion begins another timeline.
func (s *session) Leave(ctx context.Context, t *ticket, _ bool) error {
	stmt := leaveSlowly
	if s.mayBeInRow(t) {
		stmt = s.table.leaveSQL
	}
	there, where, err := s.table.leave(ctx, stmt, t.Request.Name, s.id, t.Request.ID)
	switch {
	case noSchema(err):
		return driver.ErrGone
	case err != nil || there:
		return err
	case t.ElsewhereThan(where):
		return errOtherServer
	}
	return driver.ErrGone
}

const leaveSlowly = `SELECT l.there, CASE WHEN l.there THEN '' ELSE hasp_where() END, $3::pg_catalog.text
		FROM hasp_leave(hasp_turn($1::pg_catalog.text, 0), $2::pg_catalog.text, $3::pg_catalog.text, $4::boolean) l(there)`

// leave also answers where it asked, if the entry is not there. session is "" if an operator
// evicts: that others may have the lock must not be forgotten once the operator has been told.
func (t *tables) leave(ctx context.Context, stmt, name, session, id string) (there bool, where string, err error) {
	err = t.ask(ctx, stmt, []any{name, session, id, t.opts.DurableRelease || session == ""}, &there, &where, echo(id))
	return there, where, err
}

// Publish replaces the value of the held entry.
func (s *session) Publish(ctx context.Context, t *ticket, value []byte, number uint64) (there bool, err error) {
	err = s.table.ask(ctx, "SELECT hasp_publish(hasp_level($1::pg_catalog.text), $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.bytea, $5::bigint)",
		[]any{t.Request.Name, s.id, t.Request.ID, present(value), int64(number)}, &there)
	return there, err
}

// present is the value as a column wants it that cannot be NULL.
func present(value []byte) []byte {
	if value == nil {
		return []byte{}
	}
	return value
}

// Downgrade makes the held entry smaller: one statement, and so applied as a whole or not at
// all if we die under it. An entry that was renewed too late and that is not removed yet
// counts as there, as it does for Leave; whether that is a lease is for its owner's clock.
func (s *session) Downgrade(ctx context.Context, t *ticket, units int64) (there bool, err error) {
	err = s.table.ask(ctx, "SELECT hasp_downgrade(hasp_level($1::pg_catalog.text), $2::pg_catalog.text, $3::pg_catalog.text, $4::bigint)",
		[]any{t.Request.Name, s.id, t.Request.ID, units}, &there)
	if noSchema(err) {
		return false, nil
	}
	return there, err
}

// Adopt moves another session's entry to ours, in one statement.
func (s *session) Adopt(ctx context.Context, t *ticket, id string, seq uint64) (pushqueue.Answer, error) {
	r := t.Request
	var state string
	err := s.table.ask(ctx, `SELECT hasp_adopt(hasp_level($1::pg_catalog.text), $2::pg_catalog.text, $3::bigint, $4::pg_catalog.text, $5::pg_catalog.text,
		$6::bigint, $7::bigint, $8::pg_catalog.text, $9::bigint)`,
		[]any{r.Name, id, int64(seq), r.ID, s.id, r.Units, r.Capacity, r.Owner, r.Since.UnixMicro()}, &state)
	switch {
	case noSchema(err), err == nil && state == "dead":
		return pushqueue.Answer{State: pushqueue.Dead}, nil
	case err == nil && state != "held":
		return pushqueue.Answer{State: pushqueue.Gone}, nil
	}
	return pushqueue.Answer{State: pushqueue.Held, Seq: seq}, err
}
